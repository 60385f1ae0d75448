"""How a study runs, whatever it trains."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

from tuner.errors import InputError
from tuner.estimation.registry import Method
from tuner.machine.devices import DeviceChoice
from tuner.placement.packing import Packing
from tuner.placement.retry import OnOom, RetryPolicy
from tuner.records.study_folder import check_empty
from tuner.search.schedulers import SCHEDULERS, SchedulerName
from tuner.trial import GB, MOST_GB

# The smallest value of each option that is a number, and whether it is allowed itself; all are finite.
LOWEST: dict[str, tuple[float, bool]] = {
    "model_memory_gb": (0, False),
    "gpu_memory_buffer_gb": (0, True),
    "device_memory_gb": (0, False),
    "seed": (0, True),
    "seeds": (1, True),
    "split_seed": (0, True),
    "max_workers": (1, True),
    "threads": (1, True),
    "epochs": (1, True),
    "max_attempts": (1, True),
    "retry_growth": (1, False),
    "backoff": (0, True),
    "backoff_max": (0, True),
    "max_failures": (0, True),
    "checkpoint_seconds": (0, True),
    "num_samples": (1, True),
}

_NUMBER = r"(\d+\.?\d*|\.\d+)"
_TIME = re.compile(rf"(?:{_NUMBER}\s*h)?\s*(?:{_NUMBER}\s*m)?\s*(?:{_NUMBER}\s*s)?")  # such as 1h30m


@dataclass(frozen=True)
class Settings:
    """The options of a study.

    Attributes:
        auto_memory: estimate what every configuration needs.
        model_memory_gb: what each trial is given otherwise, in GB.
        packing: "per-trial" gives each trial what it needs, "uniform" what the largest needs; None chooses the first
            with ``auto_memory``, else the second.
        gpu_memory_buffer_gb: what is left alone on each device, in GB.
        device_memory_gb: use no more of a device than if it had this much, in GB.
        caps: end a trial that outgrows its share, alone, before it takes its neighbours'.
        max_workers: at most so many trials at once.
        threads: CPU threads for each trial; None divides the cores between the workers.
        epochs: replaces every configuration's number of epochs.
        seed: seed of the validation split, weights, batches and dropout.
        seeds: every configuration is trained with so many seeds, from ``seed`` on.
        split_seed: seed of the validation split, if it is not ``seed``.
        time_limit: the study ends after this: seconds, or a text such as "90s", "30m" or "1h30m".
        max_attempts: a trial may run out of memory so many times.
        retry_growth: what a trial's share is multiplied by after that.
        backoff: the first retry waits about so many seconds while other trials run, each further one twice as long.
        backoff_max: but none longer than this.
        on_oom: "grow", "accumulate" (halve the micro-batch where a whole device is not enough) or "fail".
        max_failures: so many times a trial that raised another exception is tried again.
        checkpoint_seconds: how often a running trial keeps a checkpoint, at the end of an epoch.
        output: the study's folder; None makes one under ``results/``.
        resume: the folder of a study to go on with.
        address: a Ray cluster to join: "auto" or "HOST:PORT"; None starts a local Ray.
        device: "auto", "cpu" or "cuda".
        memory_estimation: how ``auto_memory`` estimates: "static", "traced", "measured" or "auto".
        calibration: correct estimates by what earlier trials needed, and keep what these need for later ones.
        expandable_segments: set PyTorch's allocator option of that name for the trials.
        search: how a space is searched: "grid", "random", "optuna", or what a searcher of the user's own is called;
            None where there is a list of configurations.
        num_samples: how many configurations a search tries; None for all of a grid.
        scheduler: stops trials that are not worth their epochs: "asha", "median", or "fifo" for none.
        report: write ``report.html`` at the end.
        tensorboard: write event files for TensorBoard into the study's folder.
        mlflow: the URI of an MLflow server or store that is told, too.
        wandb: the project of Weights & Biases that is told, too.
        dry_run: stop after the plan.
    """

    auto_memory: bool = False
    model_memory_gb: float = 1.5
    packing: Packing | None = None
    gpu_memory_buffer_gb: float = 2.0
    device_memory_gb: float | None = None
    caps: bool = True
    max_workers: int | None = None
    threads: int | None = None
    epochs: int | None = None
    seed: int = 0
    seeds: int = 1
    split_seed: int | None = None
    time_limit: str | float | None = None
    max_attempts: int = 4
    retry_growth: float = 1.5
    backoff: float = 5.0
    backoff_max: float = 300.0
    on_oom: OnOom = "grow"
    max_failures: int = 0
    checkpoint_seconds: float = 60.0
    output: str | None = None
    resume: str | None = None
    address: str | None = None
    device: DeviceChoice = "auto"
    memory_estimation: Method = "auto"
    calibration: bool = True
    expandable_segments: bool = False
    search: str | None = None
    num_samples: int | None = None
    scheduler: SchedulerName = "fifo"
    report: bool = True
    tensorboard: bool = False
    mlflow: str | None = None
    wandb: str | None = None
    dry_run: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The settings among a function's options, by their names; what is not there has its default."""
        return cls(**{name: options[name] for name in cls.__dataclass_fields__ if name in options})

    def check(self) -> None:
        """Refuses what cannot be used, before anything is done.

        Raises:
            InputError: a number makes no sense, two options exclude each other, or ``output`` cannot be written.
        """
        for option, (low, inclusive) in LOWEST.items():
            value = getattr(self, option)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise InputError(f"--{option.replace('_', '-')} {value!r}: must be a number")
            if value is not None and not math.isfinite(value):
                raise InputError(f"--{option.replace('_', '-')} {value:g}: must be a finite number")
            if value is not None and not (value >= low if inclusive else value > low):
                must = f"at least {low:g}" if inclusive else f"more than {low:g}"
                raise InputError(f"--{option.replace('_', '-')} {value:g}: must be {must}")
            if value is not None and option.endswith("_gb") and value > MOST_GB:
                raise InputError(f"--{option.replace('_', '-')} {value:g}: must be at most {MOST_GB:,} GB")
        if self.auto_memory and self.model_memory_gb != type(self).model_memory_gb:
            raise InputError("--auto-memory and --model-memory-gb were both given: leave one of them out")
        if self.memory_estimation != "auto" and not self.auto_memory:
            raise InputError(f"--memory-estimation {self.memory_estimation}: has no effect without --auto-memory")
        for option, choices in (
            ("packing", get_args(Packing)),
            ("on_oom", get_args(OnOom)),
            ("scheduler", SCHEDULERS),
        ):
            value = getattr(self, option)
            if value is not None and value not in choices:
                raise InputError(f"--{option.replace('_', '-')} {value}: choose one of {', '.join(choices)}")
        if self.time_limit is not None:
            parse_seconds(self.time_limit, "--time-limit")
        if self.output and self.resume:
            raise InputError("--output and --resume were both given: a resumed study stays in its folder")
        if self.output:
            _check_output(Path(self.output))

    @property
    def data_seed(self) -> int:
        """Seed of the validation split."""
        return self.seed if self.split_seed is None else self.split_seed

    @property
    def time_limit_seconds(self) -> float | None:
        """After how long the study ends; None for when it is done."""
        return None if self.time_limit is None else parse_seconds(self.time_limit, "--time-limit")

    @property
    def time_limit_text(self) -> str:
        """The limit as texts call it: what the user wrote, with a unit."""
        text = f"{self.time_limit:g}" if isinstance(self.time_limit, float) else str(self.time_limit).strip()
        return text if text[-1:] in ("s", "m", "h") else f"{text} s"

    @property
    def buffer_bytes(self) -> int:
        """What is left alone on each device, in bytes."""
        return int(self.gpu_memory_buffer_gb * GB)

    @property
    def packing_used(self) -> Packing:
        """The packing that was asked for, or the one that goes with the estimates."""
        return self.packing or ("per-trial" if self.auto_memory else "uniform")

    @property
    def retry_policy(self) -> RetryPolicy:
        """What the options say about retries."""
        return RetryPolicy(
            max_attempts=self.max_attempts,
            growth=self.retry_growth,
            backoff_seconds=self.backoff,
            backoff_max_seconds=self.backoff_max,
            on_oom=self.on_oom,
            max_failures=self.max_failures,
        )


def parse_seconds(given: str | float, option: str) -> float:
    """A time in seconds: from a number of them, or a text such as "90s", "30m", "1.5h", "1h30m" or "90".

    Args:
        given: what the user gave.
        option: by which it was given, for messages.

    Raises:
        InputError: it is no such text, or not above 0.
    """
    seconds = 0.0
    if isinstance(given, str) and re.fullmatch(_NUMBER, given.strip()):
        seconds = float(given)
    elif isinstance(given, str) and (found := _TIME.fullmatch(given.strip())):
        seconds = sum(float(number or 0) * each for number, each in zip(found.groups(), (3600, 60, 1), strict=True))
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        seconds = float(given)
    if not 0 < seconds < math.inf:
        raise InputError(
            f"{option} {given}: must be a time above 0: seconds, or numbers with h, m and s, such as 90s or 1h30m"
        )
    return seconds


def _check_output(path: Path) -> None:
    """Refuses a folder that has files, or that cannot be made; makes nothing."""
    try:
        if path.is_dir():
            check_empty(path)
    except OSError as error:
        raise InputError(f"--output {path}: cannot be read: {error.strerror}") from error
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise InputError(f"--output {path}: cannot be written: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--output {path}: cannot be written: no permission in {existing}")
