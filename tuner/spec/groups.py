"""Every option of a study, in groups, of which ``settings.py`` and ``commands.py`` put commands together."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, ValidationInfo

from tuner.decisions.plan import Packing
from tuner.decisions.retry import OnOom
from tuner.errors import ParameterError, both_given, option
from tuner.objective import DIRECTIONS
from tuner.search.optuna_names import FIFO, PRUNERS, SCHEDULERS, SEARCHES, canonical
from tuner.search.parsing import GivenFile
from tuner.spec.data_groups import DataOptions
from tuner.spec.goal_groups import EarlyEnd
from tuner.spec.memory_groups import DeviceMemory, TrialMemory
from tuner.spec.options import Options, PathText, Terminal, Texts, field
from tuner.trial import AUTO, MOST_RANKS, MOST_SEED, MOST_TRIALS, RANKS, FreshProcesses

if TYPE_CHECKING:
    from tuner.search.configurations import Configs
    from tuner.workloads.lookup import WorkloadsLike

    Search = object
    Scheduler = object
    Space = str | Path | Mapping[str, object]
    Points = Sequence[Mapping[str, object]]
else:  # looked over where they are used, which imports torch
    WorkloadsLike = Points = object
    Configs = Space = Annotated[object, BeforeValidator(lambda given: _given_file(given))]
    Search = Scheduler = Annotated[object, BeforeValidator(canonical)]

DEFAULT_MODE = "quick"


_NUMBER = r"(\d+\.?\d*|\.\d+)"
_TIME = re.compile(rf"(?:{_NUMBER}\s*h)?\s*(?:{_NUMBER}\s*m)?\s*(?:{_NUMBER}\s*s)?")  # such as 1h30m


def parse_seconds(given: str | float, parameter: str) -> float:
    """A time in seconds: from a number of them, or a text such as "90s", "30m", "1.5h", "1h30m" or "90"."""
    seconds = 0.0
    if isinstance(given, str) and re.fullmatch(_NUMBER, given.strip()):
        seconds = float(given)
    elif isinstance(given, str) and (parts := _TIME.fullmatch(given.strip())):
        seconds = sum(float(number or 0) * unit for number, unit in zip(parts.groups(), (3600, 60, 1), strict=True))
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        seconds = float(given)
    if not 0 < seconds < math.inf:
        rule = "must be a time above 0: seconds, or numbers with h, m and s, such as 90s or 1h30m"
        raise ParameterError(parameter, given, rule)
    return seconds


def _given_file(given: object) -> object:
    """A path as that of a file that is read once; anything else as it is."""
    is_path = isinstance(given, (str, Path)) and not isinstance(given, GivenFile)
    return GivenFile(given) if is_path else given


def _time(given: object, about: ValidationInfo) -> object:
    if isinstance(given, (str, int, float)):
        parse_seconds(given, str(about.field_name))
    return given


def _ranks(given: object) -> object:
    """A number of ranks, which may be a text, or auto."""
    number = int(given) if isinstance(given, str) and given.isdecimal() else given
    if number != AUTO and (type(number) is not int or not 1 <= number <= MOST_RANKS):
        raise ParameterError(RANKS, given, f"must be a whole number from 1 to {MOST_RANKS}, or {AUTO}")
    return number


Ranks = Annotated[str | int, BeforeValidator(_ranks)]
Time = Annotated[str | float | None, BeforeValidator(_time)]


def _option_texts(given: object) -> object:
    """A dictionary of options as texts KEY=VALUE."""
    return tuple(f"{key}={value}" for key, value in given.items()) if isinstance(given, Mapping) else given


OptionTexts = Annotated[Texts, BeforeValidator(_option_texts)]


class SelectionOptions(DataOptions, title="Configurations and data"):
    """What to train, on which data."""

    positional: ClassVar[tuple[str, ...]] = ("workload",)

    workload: WorkloadsLike = field(
        (),
        "What to train, built in or of your own: graphsage, gt-ssl or kd-gat, or a class or function as MODULE:NAME. "
        "Several train side by side.",
        Terminal(
            "NAME|MODULE:NAME",
            common=True,
            unset=f"the workload that {option('config')} names, or graphsage",
            in_python="A class or an object of your own can be given as it is.",
        ),
    )
    mode: str = field(
        DEFAULT_MODE,
        "A named list of configurations: quick, architecture, learning, regularization or full; for gt-ssl also "
        "pretrain, 8gb, 12gb, 16gb or 24gb.",
        Terminal("NAME", common=True),
    )
    config: Configs | None = field(
        None,
        "A file with a list, grid or space of your own, in place of a mode: YAML, TOML or JSON.",
        Terminal(
            "FILE",
            common=True,
            in_python="What such a file holds, or a list of configurations, can be given as it is.",
        ),
    )
    overrides: Texts = field(
        (), "The value of a hyperparameter in every configuration, as KEY=VALUE.", Terminal("KEY=VALUE", "--set")
    )
    only: str | None = field(None, "Take only the configuration of this name.", Terminal("NAME"))
    limit: int | None = field(None, "Take only the first N configurations of each workload.", Terminal("N"))

    def check_selection(self) -> None:
        """Refuses a mode that has no effect, also where the mode that was given is the default.

        Raises:
            InputError: it is a direction, a file is given as well, or all workloads are the user's own, which have
                no modes.
        """
        several = not isinstance(self.workload, str) and isinstance(self.workload, Sequence)
        names: Sequence[object] = self.workload if several else [self.workload]  # type: ignore[assignment]
        users = [name for name in names if isinstance(name, str) and ":" in name]
        if self.mode in DIRECTIONS:
            rule = "is not a list of configurations, which this option expects"
            raise ParameterError("mode", self.mode, rule, f"give {option('direction', DIRECTIONS[self.mode])}")
        if "mode" in self.model_fields_set and users and len(users) == len(names):
            rule = f"workload {' and '.join(users)} has no modes"
            raise ParameterError("mode", self.mode, rule, f"give it a list by {option('config')}")
        if self.config is not None and "mode" in self.model_fields_set:
            raise both_given("config", "mode")


class Seed(Options, title="Training"):
    """The first seed."""

    seed: int = field(
        0, "The seed of the validation split, weights, batches and dropout.", Terminal("N"), ge=0, le=MOST_SEED
    )


class Training(Seed, title="Training"):
    """How long, and how often."""

    epochs: int | None = field(
        None,
        "Train every configuration for N epochs; a function or a script is ended by its report of epoch N.",
        Terminal("N", unset="each configuration's own number"),
        ge=1,
    )
    seeds: int = field(
        1,
        f"Train every configuration with N seeds, starting with {option('seed')}. The data stay split by that one.",
        Terminal("N"),
        ge=1,
        le=MOST_TRIALS,
    )
    split_seed: int | None = field(
        None, "The seed of the validation split alone.", Terminal("N", unset=f"{option('seed')}"), ge=0, le=MOST_SEED
    )


class PackingOptions(TrialMemory, DeviceMemory, title="Packing"):
    """How trials share devices."""

    packing: Packing | None = field(
        None,
        "Give each trial what it needs (per-trial), or what the largest trial needs (uniform).",
        Terminal(
            unset="uniform if all trials are given the same memory, else per-trial", choices=("per-trial", "uniform")
        ),
    )
    max_workers: int | None = field(
        None,
        "The maximum number of trials at once; each rank of a trial counts as one.",
        Terminal(
            "N", common=True, unset="as many as fit", aliases=("--num-workers", "--n-jobs", "--max-concurrent-trials")
        ),
        ge=1,
    )
    gpus_per_trial: Ranks = field(
        1,
        "The number of processes (ranks) that train a trial together by torch.distributed, each with a GPU of "
        "its own, or on the CPU with its own threads; auto: the fewest of 1, 2, 4 and 8 with which it fits. A "
        "key of this name in a configuration or a space takes precedence.",
        Terminal("N"),
    )
    nodes_per_trial: int = field(
        1, "The number of machines of a cluster that share the ranks of a trial evenly.", Terminal("N"), ge=1, le=64
    )
    adaptive_workers: bool = field(
        True, f"Without {option('max_workers')}, run more or fewer trials at once on a GPU if measured to be faster."
    )
    threads: int | None = field(
        None, "The number of CPU threads of each trial.", Terminal("N", unset="idle cores / workers"), ge=1
    )


class TooLarge(Options, title="Packing"):
    """What happens to a configuration that fits no device."""

    skip_too_large: bool = field(
        False, "Leave out configurations that fit on no device, and list them as too_large, instead of refusing all."
    )


class OutOfMemory(Options, title="Retries and checkpoints"):
    """What follows a trial that runs out of memory."""

    max_attempts: int = field(
        4, "The maximum number of attempts for a trial that runs out of memory.", Terminal("N"), ge=1
    )
    retry_growth: float = field(
        1.5, "The factor by which a trial's memory grows after it ran out of memory.", Terminal("FACTOR"), gt=1
    )
    backoff: float = field(
        5.0,
        "The wait before the first retry while other trials run, in seconds; it doubles with each further retry.",
        Terminal("SECONDS"),
        ge=0,
    )
    backoff_max: float = field(300.0, "The longest wait before a retry, in seconds.", Terminal("SECONDS"), ge=0)
    on_oom: OnOom = field(
        "grow",
        "What to do when a trial runs out of memory: grow gives it more, up to a whole device; accumulate then "
        "halves the micro-batch, or the chunks of an evaluation that ran out; fail does not retry.",
    )


class Retries(OutOfMemory, title="Retries and checkpoints"):
    """What follows a trial that fails."""

    max_failures: int = field(
        0, "The maximum number of retries of a trial that raised another error.", Terminal("N"), ge=0
    )
    trial_timeout: Time = field(
        None,
        'End a trial that reports nothing for this long, and retry it once: seconds, or a text such as "90s" '
        'or "10m". Each epoch is a report, and the time starts with your own code.',
        Terminal("90s|10m", unset="no trial is ended for that"),
    )
    checkpoint_seconds: float = field(
        60.0, "The time between two checkpoints of a running trial, in seconds.", Terminal("SECONDS"), ge=0
    )


class Caps(Options, title="Execution"):
    """What keeps a trial within its share."""

    caps: bool = field(True, "End a trial that takes more than its share, before it takes memory from the others.")


class StudyOptions(Training, PackingOptions, Retries, Caps, EarlyEnd, title="Execution"):
    """The options of every study."""

    time_limit: Time = field(
        None,
        'End the study after this time and keep its results: seconds, or a text such as "90s", "30m" or "1h30m".',
        Terminal("90s|30m|1h30m", aliases=("--timeout", "--time-budget")),
    )
    in_process: bool = field(
        False, "Train one trial after another in this process, without Ray: it starts fastest, and a debugger works."
    )
    fresh_processes: FreshProcesses = field(
        "auto",
        "Run each trial in a new process, so that nothing of an earlier trial is left in it: on, off, or "
        "auto, which does so on the CPU, where it costs milliseconds.",
    )
    address: str | None = field(
        None,
        "Join this Ray cluster: auto or HOST:PORT; local starts a Ray of the study's own.",
        Terminal("auto|HOST:PORT|local", unset="RAY_ADDRESS, else local"),
    )


class Records(Options, title="Results"):
    """Where results go."""

    output: PathText | None = field(
        None,
        "The study's folder, new or empty.",
        Terminal("DIR", unset="a new one under results/", aliases=("--output-dir", "--storage-path")),
    )
    resume: PathText | None = field(
        None,
        "Continue the study in this folder. Its options are kept, except those that are given now.",
        Terminal("DIR", common=True),
    )
    report: bool = field(True, "Write report.html, a page of plots and tables, at the end.")
    tensorboard: bool = field(False, "Write event files for TensorBoard, with HParams, into the study's folder.")
    mlflow: str | None = field(
        None,
        "Also send results to this MLflow server, or to a store such as sqlite:///FILE; needs the extra mlflow.",
        Terminal("URI"),
    )
    wandb: str | None = field(
        None,
        "Also send results to this project of Weights & Biases; needs the extra wandb.",
        Terminal("[ENTITY/]PROJECT"),
    )


class SpaceOptions(Options, title="Search"):
    """What to try."""

    search: Search | None = field(
        None,
        f"How to search a space, or a mode that is a grid: {', '.join(SEARCHES)}. All but grid are of Optuna.",
        Terminal(
            "NAME",
            unset="a list is tried as it is, choices alone as a grid, and any other space at random",
            choices=(*SEARCHES, "optuna"),
            aliases=("--sampler", "--search-alg"),
            in_python="One of Optuna's samplers or a searcher of ray.tune.search can be given as it is.",
        ),
    )
    search_options: OptionTexts = field(
        (),
        "An option of the sampler, as KEY=VALUE: an argument of its constructor in Optuna.",
        Terminal("KEY=VALUE", "--search-option", in_python="A dictionary of them."),
    )
    space: Space | None = field(
        None,
        'A file with the space to search: YAML, TOML or JSON, with the space alone or under "space:".',
        Terminal(
            "FILE",
            common=True,
            in_python="A mapping can be given as it is: from hyperparameter to a value, to a mapping such as "
            '{"loguniform": [1e-4, 0.1]}, to a domain of ray.tune or to a distribution of Optuna.',
        ),
    )
    points: Points | None = field(
        None,
        "Configurations to try before the search draws any, each a mapping with some or all hyperparameters.",
        Terminal(hidden=True),
    )
    num_samples: int | None = field(
        None,
        "The number of configurations that a search tries; a grid is tried as a whole.",
        Terminal("N", common=True, aliases=("--n-trials",)),
        ge=1,
        le=MOST_TRIALS,
    )


class SearchOptions(SpaceOptions, title="Search"):
    """What to try next, and what to stop."""

    scheduler: Scheduler = field(
        FIFO,
        f"End bad trials early by one of Optuna's pruners: {', '.join(PRUNERS)}. fifo ends none. With pbt the trials "
        "of a space are a population: bad ones take over checkpoints and changed values of good ones.",
        Terminal(
            "NAME",
            choices=(*SCHEDULERS, "successive-halving"),
            aliases=("--pruner",),
            in_python="One of Optuna's pruners can be given as it is.",
        ),
    )
    scheduler_options: OptionTexts = field(
        (),
        "An option of the pruner, as KEY=VALUE: an argument of its constructor in Optuna; for pbt interval and "
        "epochs, in reports, quantile, resample or mutate.",
        Terminal("KEY=VALUE", "--scheduler-option", in_python="A dictionary of them."),
    )
