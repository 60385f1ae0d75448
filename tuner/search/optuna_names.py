"""Optuna's samplers and pruners by their plain names, with the options that their constructors take, and ``pbt``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from tuner.errors import InputError, ParameterError, did_you_mean, one_line, option
from tuner.search.searchers import is_of_tune

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

    from tuner.search.mutations import PopulationBasedTraining

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


def canonical(name: object) -> object:
    """A sampler's or a pruner's name in place of its other name; anything else as it is."""
    return ALIASES.get(name, name) if isinstance(name, str) else name


def check_choice(parameter: Literal["search", "scheduler"], given: object, options: Sequence[str]) -> None:
    """Refuses an unknown name, an object that is neither Optuna's nor Tune's, and options that do not go with it."""
    known = SEARCHES if parameter == "search" else SCHEDULERS
    base, what = ("BaseSampler", "sampler") if parameter == "search" else ("BasePruner", "pruner")
    if isinstance(given, type):
        raise InputError(f"{parameter}={given.__name__}: it is a class: give an object, such as {given.__name__}()")
    if isinstance(given, str):
        if given not in known:
            raise ParameterError(parameter, given, did_you_mean(given, known, f"choose one of {', '.join(known)}"))
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
        raise InputError(f"{parameter}={shown}: give one of {', '.join(known)}, an Optuna {what}{others}")
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

    Where trials are ``constrained``, it is told by how much they break constraints, if it can use that.

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
    from tuner.search.mutations import PopulationBasedTraining

    made: PopulationBasedTraining = _made("scheduler", PBT, PopulationBasedTraining, options, {})
    return made


def _made(parameter: str, name: str, cls: type, options: Sequence[str], defaults: Mapping[str, object]) -> Any:
    """An object of a class of Optuna's. Options are checked against the signature of its constructor."""
    known, plural = inspect.signature(cls).parameters, f"{parameter}_options"
    # Of each key whose values are drawn independently, a log of Optuna's would say so in every trial.
    values = {key: value for key, value in {**defaults, "warn_independent_sampling": False}.items() if key in known}
    values |= DEFAULTS.get(name, {})
    for text in options:
        key, equals, value = text.partition("=")
        if not equals:
            raise ParameterError(plural, text, "expected KEY=VALUE")
        if key not in known:
            hint = did_you_mean(key, known, f"it has {', '.join(known)}" if known else "it has none")
            raise ParameterError(plural, text, f"{cls.__name__} has no option {key!r} ({hint})")
        annotation = known[key].annotation
        values[key] = _value(plural, text, value, getattr(annotation, "__name__", str(annotation)))
    lacking = [key for key, entry in known.items() if entry.default is entry.empty and key not in values]
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
    for kind, convert in CONVERTERS.items():
        if kind in kinds:
            try:
                return convert(value)
            except InputError:
                raise
            except (KeyError, ValueError):
                continue
    rules = [RULES[kind] for kind in kinds if kind in RULES]
    if rules in ([], [RULES["None"]]):
        rule = "only Python can give it"
        raise ParameterError(parameter, option_text, rule, "give the object of Optuna itself, which has it")
    raise ParameterError(parameter, option_text, f"must be {' or '.join(rules)}")


# How a text becomes a value of each type that annotations name, the strictest first.
CONVERTERS: Mapping[str, Callable[[str], object]] = {
    "None": lambda text: {"none": None}[text.lower()],
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": int,
    "float": float,
    "BaseSampler": lambda text: make_sampler(text),
    "BasePruner": lambda text: make_pruner(text),
    "str": str,
}
RULES = {
    "None": "none",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "BaseSampler": f"one of {', '.join(SAMPLERS)}",
    "BasePruner": f"one of {', '.join(PRUNERS)}",
    "str": "a text",
}
