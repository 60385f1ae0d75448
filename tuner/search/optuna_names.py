"""Optuna's samplers and pruners by their plain names, with the options that their constructors take, and ``pbt``.

Source of population-based training: M. Jaderberg et al., Population Based Training of Neural Networks,
arXiv:1711.09846, 2017. Factors and probabilities are the defaults of Ray Tune.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from tuner.errors import InputError, ParameterError, did_you_mean, one_line, option
from tuner.search.domains import WHOLE, Domain, Space
from tuner.search.searchers import is_of_tune
from tuner.trial import AUTO, Config, ConfigValue
from tuner.values import value_key

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

SAMPLERS = {
    "random": "RandomSampler",
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "qmc": "QMCSampler",
    "nsgaii": "NSGAIISampler",
    "nsgaiii": "NSGAIIISampler",
    "bruteforce": "BruteForceSampler",
}
PRUNERS = {
    "asha": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "patient": "PatientPruner",
    "threshold": "ThresholdPruner",
    "wilcoxon": "WilcoxonPruner",
}
ALIASES = {"optuna": "tpe", "successive-halving": "asha"}
FIFO = "fifo"  # the scheduler that stops no trial
PBT = "pbt"  # the scheduler whose trials are a population; it stops none
UP_FRONT = ("grid", "random")  # searches whose configurations are known before the study begins
SEARCHES = ("grid", *SAMPLERS)
SCHEDULERS = (FIFO, *PRUNERS, PBT)
# Where a default differs from Optuna's. Without constant_liar, TPE suggests values near those of running trials.
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "asha": {"min_resource": 1},
    "patient": {"wrapped_pruner": None},
    "tpe": {"constant_liar": True},
}
Made = TypeVar("Made")
FACTORS = 0.8, 1.2  # by which a population's numbers change


def canonical(name: object) -> object:
    """A sampler's or a pruner's name in place of its other name; anything else as it is."""
    return ALIASES.get(name, name) if isinstance(name, str) else name


def check_choice(parameter: Literal["search", "scheduler"], given: object, options: Sequence[str]) -> None:
    """Refuses an unknown name, an object that is neither Optuna's nor Tune's, and options that it does not have."""
    names = SEARCHES if parameter == "search" else SCHEDULERS
    base, what = ("BaseSampler", "sampler") if parameter == "search" else ("BasePruner", "pruner")
    if isinstance(given, type):
        raise InputError(f"{parameter}={given.__name__}: it is a class: give an object, such as {given.__name__}()")
    if isinstance(given, str):
        if given not in names:
            raise ParameterError(parameter, given, did_you_mean(given, names, f"choose one of {', '.join(names)}"))
        if options and given in ("grid", FIFO):
            rule = f"has no effect with {option(parameter, given)}: leave it out"
            raise ParameterError(f"{parameter}_options", " ".join(options), rule)
        if given == PBT:
            make_population(options)
        elif given not in ("grid", FIFO):
            (make_sampler if parameter == "search" else make_pruner)(given, options)
        return
    if not (is_of_optuna(given, base) or (parameter == "search" and is_of_tune(given))):
        others = " or a searcher of ray.tune" if parameter == "search" else ""
        shown = given if isinstance(given, (int, float)) else type(given).__name__
        raise InputError(f"{parameter}={shown}: give one of {', '.join(names)}, an Optuna {what}{others}")
    if options:
        name = type(given).__name__
        rule = f"{parameter}={name} takes its options in its own constructor"
        raise ParameterError(f"{parameter}_options", " ".join(options), rule)


def is_of_optuna(given: object, base: str) -> bool:
    """Whether an object has a class of Optuna's, such as ``BaseSampler``, among its own."""
    return any(cls.__module__.startswith("optuna.") and cls.__name__ == base for cls in type(given).__mro__)


def make_sampler(
    given: object, options: Sequence[str] = (), seed: int = 0, *, constrained: bool = False
) -> BaseSampler:
    """The sampler of this name, with options as texts KEY=VALUE; an object as it is.

    If trials are ``constrained``, it gets their excess over constraints, if it can use that.

    Raises:
        InputError: an option is wrong or missing.
    """
    from optuna import samplers

    if not isinstance(given, str):
        return cast("BaseSampler", given)
    defaults: dict[str, object] = {"seed": seed}
    if constrained:
        from tuner.search.optuna_trials import excess_of

        defaults["constraints_func"] = excess_of
    made: BaseSampler = _made("search", given, getattr(samplers, SAMPLERS[given]), options, defaults)
    return made


def make_pruner(given: object, options: Sequence[str] = ()) -> BasePruner:
    """The pruner of this name, with options as texts KEY=VALUE; an object as it is.

    Raises:
        InputError: an option is wrong or missing.
    """
    from optuna import pruners

    if not isinstance(given, str):
        return cast("BasePruner", given)
    if given == FIFO:
        return pruners.NopPruner()
    made: BasePruner = _made("scheduler", given, getattr(pruners, PRUNERS[given]), options, {})
    return made


def make_population(options: Sequence[str]) -> PopulationBasedTraining:
    """The options of population-based training, from texts KEY=VALUE; raises ``InputError`` as ``make_pruner``."""
    return _made("scheduler", PBT, PopulationBasedTraining, options, {})


def _made(parameter: str, name: str, cls: type[Made], options: Sequence[str], defaults: Mapping[str, object]) -> Made:
    """An object of a class of Optuna's. Options are checked against the signature of its constructor."""
    parameters, plural = inspect.signature(cls).parameters, f"{parameter}_options"
    # Else Optuna would log in every trial which keys it draws independently.
    values = {
        key: value for key, value in {**defaults, "warn_independent_sampling": False}.items() if key in parameters
    }
    values |= DEFAULTS.get(name, {})
    for text in options:
        key, equals, value = text.partition("=")
        if not equals:
            raise ParameterError(plural, text, "expected KEY=VALUE")
        if key not in parameters:
            hint = did_you_mean(key, parameters, f"it has {', '.join(parameters)}" if parameters else "it has none")
            raise ParameterError(plural, text, f"{cls.__name__} has no option {key!r} ({hint})")
        annotation = parameters[key].annotation
        values[key] = _value(plural, text, value, getattr(annotation, "__name__", str(annotation)))
    lacking = [key for key, entry in parameters.items() if entry.default is entry.empty and key not in values]
    if lacking:
        remedy = " and ".join(option(plural, f"{key}=…") for key in lacking)
        raise InputError(f"{option(parameter, name)}: {cls.__name__} needs {' and '.join(lacking)}: give {remedy}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna's, about experimental classes
            return cls(**values)
    except (TypeError, ValueError) as error:
        given = [option(plural, text) for text in options] or [option(parameter, name)]
        raise InputError(f"{' '.join(given)}: {one_line(error)}") from error


def _value(parameter: str, option_text: str, value: str, annotation: str) -> object:
    """An option's value, of the first type of its annotation that can have it."""
    kinds = [kind.strip() for kind in annotation.split("|")]
    for kind, (_, convert) in TYPES.items():
        if kind in kinds:
            try:
                return convert(value)
            except InputError:
                raise
            except (KeyError, ValueError):
                continue
    rules = [TYPES[kind][0] for kind in kinds if kind in TYPES]
    if rules in ([], ["none"]):
        rule = "only Python can give it"
        raise ParameterError(parameter, option_text, rule, "give an object of Optuna")
    raise ParameterError(parameter, option_text, f"must be {' or '.join(rules)}")


# By the types that annotations name, the strictest first: which texts are allowed, and how one becomes a value.
TYPES: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "None": ("none", lambda text: {"none": None}[text.lower()]),
    "bool": ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    "int": ("a whole number", int),
    "float": ("a number", float),
    "BaseSampler": (f"one of {', '.join(SAMPLERS)}", make_sampler),
    "BasePruner": (f"one of {', '.join(PRUNERS)}", make_pruner),
    "str": ("a text", str),
}


@dataclass(frozen=True)
class PopulationBasedTraining:
    """The options of ``pbt``; others than these values raise ``ValueError``."""

    interval: int = 0  # the epochs between two looks at a member; 0 for a tenth of all
    epochs: int = 0  # how many there are, where the configuration does not say it
    quantile: float = 0.25  # the part of the population that takes over, and from which is taken over
    resample: float = 0.25  # how likely a value is drawn anew from the space, and not changed by a factor
    mutate: str = ""  # the hyperparameters that change, with commas between them; empty for all of the space

    def __post_init__(self) -> None:
        for name, value in (("interval", self.interval), ("epochs", self.epochs)):
            if value < 0:
                raise ValueError(f"{name} is {value}: give a number of epochs")
        if not 0 < self.quantile <= 0.5:
            raise ValueError(f"quantile is {self.quantile}: give more than 0 and at most 0.5")
        if not 0 <= self.resample <= 1:
            raise ValueError(f"resample is {self.resample}: give a probability from 0 to 1")

    def keys(self, space: Space, config: Config) -> list[str]:
        """The hyperparameters of a configuration that change. Those on which others depend stay as they are.

        Raises:
            InputError: ``mutate`` names a key that the space lacks.
        """
        names = [key.strip() for key in self.mutate.split(",") if key.strip()] or list(space)
        if missing := [key for key in names if key not in space]:
            raise InputError(f"{option('scheduler_options', f'mutate={self.mutate}')}: the space has no {missing[0]}")
        named = {key for domain in space.values() for key in domain.conditions}
        return [key for key in names if key in config and key not in named and not space[key].is_constant]


def mutated(domain: Domain, value: ConfigValue, drawn: ConfigValue, again: float, random: Random) -> ConfigValue:
    """A value near another one, or with the probability ``again`` the one that was drawn from the domain.

    A number of a range is multiplied by 0.8 or 1.2. Of a list it is the neighbour on one side.
    """
    if random.random() < again or value == AUTO:
        return drawn
    if domain.kind == "choice":
        listed = {value_key(one): one for one in domain.values}
        keys, key = list(listed), value_key(value)
        place = keys.index(key) + random.choice((-1, 1)) if key in listed else 0
        return listed[keys[min(max(place, 0), len(keys) - 1)]]
    low, high = domain.ends
    factor = random.choice(FACTORS)
    moved = float(value) * factor
    if domain.kind in WHOLE:  # by one at least
        moved = round(moved) if round(moved) != value else float(value) + (1 if factor > 1 else -1)
    moved = min(max(moved, low), high)
    return domain.nearest(int(moved) if domain.kind in WHOLE else moved)
