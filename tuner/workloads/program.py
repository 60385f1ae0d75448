"""Programs, which train by themselves: their interface, and the user's functions."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

from tuner.errors import InputError, WorkloadError
from tuner.trial import PLACING, Config, Objects
from tuner.values import value_key
from tuner.workloads.base import Trainable
from tuner.workloads.packages import used
from tuner.workloads.pickling import place_of
from tuner.workloads.session import Session, is_number

if TYPE_CHECKING:
    from tuner.workloads.session import Session

HEAVY = ("torch", "numpy", "pandas", "sklearn", "lightning", "pytorch_lightning", "transformers", "torch_geometric")
UNNAMED = "function"


class Program(Trainable):
    """A training that tuner does not look into: it is called with a configuration, and reports."""

    objects: Objects = MappingProxyType({})  # what labels of configurations stand for; see ``tuner.values``
    takes_infinite: ClassVar[bool] = False  # whether an infinite metric is a result; else the trial has diverged
    most_epochs: int | None = None  # after which a trial is completed, though the program goes on
    most_seconds: float | None = None  # the same

    @property
    def schema(self) -> None:
        """None: a program takes any keys."""

    def replaced(self, **attributes: object) -> Self:
        """The same program with other values of these attributes."""
        program = copy.copy(self)
        vars(program).update(attributes)
        return program

    def arguments_of(self, config: Config) -> dict[str, object]:
        """What the user's code receives for a configuration."""
        return arguments(config, self.objects)

    def load_data(self, source: object, seed: int) -> object:
        """The user's ``data``, unchanged."""
        return source

    def remedy(self, metric: str) -> str:
        """What to do about a program that has reported nothing."""
        return f"call tuner.report({metric}=…)"

    @abstractmethod
    def run(self, config: Config, data: object, session: Session) -> Mapping[str, float] | None:
        """Trains until the end and returns final metrics.

        They replace those of the best report if the compared metric is among them, and otherwise extend them.

        Raises what the user's code raises, ``TrialEnd`` from a report, and ``ProgramPruned``.
        """


def values_of(config: Config, objects: Objects) -> dict[str, object]:
    """A configuration with the objects that its labels stand for, without the number of its ranks.

    Lists, dicts and tuples are copies, so that a trial cannot change those of the next one.
    """
    mutable = (list, dict, tuple)
    return {
        key: copy.deepcopy(value) if isinstance(value, mutable) else value
        for key, value in given_values(config, objects).items()
        if key not in PLACING
    }


def given_values(config: Config, objects: Objects) -> Config:
    """A configuration as the user gave it: with the objects themselves in the place of their labels."""
    given = {key: objects[key].get(value_key(value), value) for key, value in config.items() if key in objects}
    return {**config, **given}


def arguments(config: Config, objects: Objects) -> dict[str, object]:
    """The values of a configuration as a function receives them: ``model.hidden`` is in the dict ``model``."""
    grouped: dict[str, object] = {}
    for key, value in values_of(config, objects).items():
        *groups, name = key.split(".")
        place = grouped
        for group in groups:
            inner = place.setdefault(group, {})
            assert isinstance(inner, dict), f"{group} is a value and a group"  # a space with both is refused
            place = inner
        place[name] = value
    return grouped


class Function(Program):
    """A function ``train(config)``, or ``train(config, data)``."""

    def __init__(self, function: Callable[..., object]) -> None:
        """Raises ``InputError`` if it takes no configuration, or takes an Optuna trial instead."""
        self.function = function
        self.name = re.sub(r"\W+", "-", getattr(self.code, "__name__", "")).strip("-") or UNNAMED
        self.takes_data, self.needs_data = _takes_data(function, self.name, of_optuna=self.asks)
        # What the function needs is mostly imported by now, unless it imports torch as it begins.
        late = used([self.code]) if "torch" not in sys.modules else ()
        self.imports = tuple(name for name in HEAVY if name in sys.modules or name in late)

    @property
    def code(self) -> object:
        """The function, without what ``functools.partial`` adds."""
        inner: object = self.function
        while isinstance(inner, functools.partial):
            inner = inner.func
        return inner

    @property
    def spec(self) -> str | None:
        """``module:function``; None for one that is in no module, or has arguments that it does not give."""
        return place_of(self.function)

    def run(self, config: Config, data: object, session: Session) -> Mapping[str, float] | None:
        """Calls the function. If it returns metrics by name with the one compared, they are its last report.

        Other numbers that it returns by name are added to those of the best report. Raises ``WorkloadError`` if it is
        an objective of Optuna's, or returns a number without a name and reports none.
        """
        values = self.arguments_of(config)
        arguments = [values, data] if self.takes_data else [values]
        try:
            returned = self.function(*arguments)
        except AttributeError as error:
            if isinstance(error.obj, dict) and str(error.name).startswith("suggest_"):
                raise WorkloadError(_of_optuna(self.name)) from error
            raise
        if is_number(returned) and not session.reports and session.checkpoint() is None:
            named = f'{{"{session.metric}": …}}'
            raise WorkloadError(
                f"{self.name} returned a number without a name: return {named}, or call "
                f"tuner.report({session.metric}=…)"
            )
        if isinstance(returned, Mapping) and session.metric in returned:
            session.returned = True
            session.report(returned)
            return None
        if not isinstance(returned, Mapping):
            return None
        return {name: value for name, value in returned.items() if is_number(value)}


def _of_optuna(name: str) -> str:
    return (
        f"{name} takes a trial, as Optuna's objectives do: call tuner.optuna.optimize(study, {name}, n_trials), or "
        f"define it as def {name}(config)"
    )


def _takes_data(function: Callable[..., object], name: str, *, of_optuna: bool) -> tuple[bool, bool]:
    """Whether a function takes the data as well, and whether it requires them."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin
        return False, False
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    needed = [parameter for parameter in positional if parameter.default is parameter.empty]
    if not positional and not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        raise InputError(f"{name} takes no configuration: define it as def {name}(config):")
    if positional and positional[0].name == "trial" and not of_optuna:
        raise InputError(_of_optuna(name))
    if len(needed) > 2:
        missing = ", ".join(parameter.name for parameter in needed[2:])
        raise InputError(f"{name} needs {missing}, too: define it as def {name}(config) or def {name}(config, data)")
    return len(needed) == 2 or any(parameter.name == "data" for parameter in positional[1:]), len(needed) == 2
