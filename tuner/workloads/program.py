"""The interface of what trains by itself: a user's function, a script, or an Optuna objective."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tuner.trial import PLACING, Config, Objects
from tuner.values import value_key
from tuner.workloads.base import Trainable

if TYPE_CHECKING:
    from tuner.workloads.session import Session


class Program(Trainable):
    """A training that tuner does not look into: it is called with a configuration, and reports.

    Attributes:
        objects: what labels of configurations stand for; see ``tuner.values``.
        takes_infinite: whether an infinite metric is a result. Else the trial has diverged.
    """

    objects: Objects = MappingProxyType({})
    takes_infinite: ClassVar[bool] = False

    @property
    def schema(self) -> None:
        """None: a program takes any keys."""

    def with_objects(self, objects: Objects) -> Self:
        """The same program, for which labels of configurations stand for these objects."""
        program = copy.copy(self)
        program.objects = objects
        return program

    def arguments_of(self, config: Config) -> dict[str, object]:
        """What the user's code receives for a configuration."""
        return arguments(config, self.objects)

    def values_of(self, config: Config) -> dict[str, object]:
        """The same by keys such as ``model.hidden``, without groups."""
        return values_of(config, self.objects)

    def load_data(self, source: object, seed: int) -> Any:
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
    values, mutable = given_values(config, objects), (list, dict, tuple)
    own = {key: value for key, value in values.items() if key not in PLACING}
    return {key: copy.deepcopy(value) if isinstance(value, mutable) else value for key, value in own.items()}


def given_values(config: Config, objects: Objects) -> Config:
    """A configuration as the user gave it: with the objects themselves in the place of their labels."""
    own = {key: objects[key].get(value_key(value), value) for key, value in config.items() if key in objects}
    return {**config, **own}


def arguments(config: Config, objects: Objects) -> dict[str, object]:
    """The values of a configuration as a function receives them: ``model.hidden`` is in the dict ``model``."""
    found: dict[str, object] = {}
    for key, value in values_of(config, objects).items():
        *groups, name = key.split(".")
        place = found
        for group in groups:
            inner = place.setdefault(group, {})
            assert isinstance(inner, dict), f"{group} is a value and a group"  # a space with both is refused
            place = inner
        place[name] = value
    return found
