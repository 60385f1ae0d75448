"""``Settings``: the one specification of a study."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tuner.decisions.constraints import INFEASIBLE, INFERENCE
from tuner.decisions.plan import Packing
from tuner.decisions.retry import RetryPolicy
from tuner.errors import InputError, ParameterError, both_given, option
from tuner.records.study_folder import check_empty
from tuner.spec.goal_groups import ObjectiveOptions
from tuner.spec.groups import Records, SearchOptions, SelectionOptions, StudyOptions, Time, TooLarge, parse_seconds
from tuner.spec.options import Options, Terminal, field
from tuner.trial import GB

if TYPE_CHECKING:
    Callbacks = Sequence[Callable[[object], object]]
else:  # looked over where they are called
    Callbacks = object

StartFolder = Literal["script", "trial"]
KeptFolders = Literal["all", "best", "none"]


class ScriptOptions(Options, title="Scripts and folders of trials"):
    """How scripts and commands run, and what stays of their files."""

    cwd: StartFolder = field(
        "script",
        "Where a script or a command starts: in the current folder (script), or in the folder of its trial, "
        "trials/ID in the study's folder (trial).",
    )
    metric_pattern: str | None = field(
        None,
        "A regular expression that finds the metric in a line that a script or a command prints, such as "
        "'Accuracy: ([0-9.]+)'. The last match of a line counts. Named groups, such as (?P<val_loss>[0-9.]+), "
        "give several metrics, and epoch. Lines of JSON are read in any case.",
        Terminal("REGEX"),
    )
    metrics_file: str | None = field(
        None,
        "The file of metrics that a script or a command writes in the folder of its trial, with wildcards, "
        "such as 'logs/**/metrics.csv': CSV with a header, lines of JSON, or TensorBoard's event files.",
        Terminal("FILE"),
    )
    config_template: str | None = field(
        None,
        "The YAML, TOML or JSON file to which {config} among a script's arguments adds a trial's values.",
        Terminal("FILE"),
    )
    keep: KeptFolders = field(
        "all",
        "Which folders of trials to keep once trials have ended: all, only that of the best trial (best), or "
        "none. Those of failed trials are kept.",
    )


class Settings(
    SelectionOptions,
    ObjectiveOptions,
    ScriptOptions,
    SearchOptions,
    StudyOptions,
    TooLarge,
    Records,
    title="Execution",
):
    """The specification of a study: what ``tuner run`` and ``tuner.run`` take."""

    trial_time_limit: Time = field(
        None,
        'End a function or a script that trains for this long, as completed: seconds, or a text such as "90s" or '
        f'"10m". With {option("in_process")} it ends at its next report.',
        Terminal("90s|10m", unset="none"),
    )
    dry_run: bool = field(False, "Stop after the plan.")
    callbacks: Callbacks | None = field(
        None,
        "Functions that are called in this process with each event of the study: trials that start, report, end or "
        "are tried again. The events are classes of tuner.decisions.events.",
        Terminal(hidden=True),
    )

    def check(self) -> None:
        """Refuses options that exclude each other, and folders that cannot be used."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # as in a loader of a trial
            raise InputError("a new process imports this program: start studies under if __name__ == '__main__':")
        self.check_selection()
        self._check_memory()
        if self.in_process:
            for name in ("address", "trial_timeout"):
                if getattr(self, name) is not None:
                    raise both_given("in_process", name)
            if self.max_workers not in (None, 1):
                raise both_given("in_process", "max_workers", "this process trains one trial at a time")
        if self.inference_batch and INFERENCE not in self.compared_by:
            rule = f"has no effect where nothing is compared by {INFERENCE}"
            raise ParameterError("inference_batch", self.inference_batch, rule, "leave it out")
        callbacks: object = self.callbacks or []
        if not isinstance(callbacks, (list, tuple)) or not all(map(callable, callbacks)):
            raise ParameterError("callbacks", callbacks, "must be a list of functions that take an event")
        if self.output and self.resume:
            raise both_given("output", "resume", "a resumed study stays in its folder")
        if self.output:
            _check_output(Path(self.output))

    def _check_memory(self) -> None:
        """Refuses memory that is given twice, given and estimated, or neither."""
        if self.memory_gb is not None and self.model_memory_gb is not None:
            raise both_given("memory_gb", "model_memory_gb")
        if self.estimates_memory:
            if not self.auto_memory:
                rule = "then the memory of each trial must be given"
                raise ParameterError("auto_memory", False, rule, f"give {option('model_memory_gb')}")
            return
        if self.given().get("auto_memory"):
            raise both_given(self.given_by, "auto_memory")
        if self.estimate is not None:
            raise both_given(self.given_by, "estimate")
        if self.memory_estimation != "auto":
            given = option("memory_estimation", self.memory_estimation)
            raise InputError(f"{given}: has no effect with {option(self.given_by)}")

    @property
    def estimates_memory(self) -> bool:
        """Whether each trial's memory is estimated: unless it is given."""
        return self.model_memory_gb is None and self.memory_gb is None

    @property
    def cluster(self) -> str | None:
        """The Ray cluster to join: ``address``, or where that is not given ``RAY_ADDRESS``; None for none."""
        address = self.address or (None if self.in_process else os.environ.get("RAY_ADDRESS"))
        return None if address in ("local", "") else address

    @property
    def most_suggestions(self) -> int:
        """How many trials a search may suggest, with those that break constraints."""
        return (self.num_samples or 0) * (1 + INFEASIBLE * bool(self.constraints))

    @property
    def data_seed(self) -> int:
        """Seed of the validation split."""
        return self.seed if self.split_seed is None else self.split_seed

    @property
    def time_limit_seconds(self) -> float | None:
        """The seconds after which the study ends early; None without a limit."""
        return None if self.time_limit is None else parse_seconds(self.time_limit, "time_limit")

    @property
    def time_limit_text(self) -> str:
        """The limit as the user wrote it, with a unit."""
        text = f"{self.time_limit:g}" if isinstance(self.time_limit, float) else str(self.time_limit).strip()
        return text if text[-1:] in ("s", "m", "h") else f"{text} s"

    @property
    def trial_timeout_seconds(self) -> float | None:
        """The seconds without a report after which a trial is ended; None for never."""
        return None if self.trial_timeout is None else parse_seconds(self.trial_timeout, "trial_timeout")

    @property
    def trial_seconds(self) -> float | None:
        """The seconds after which a program's trial is completed; None without a limit."""
        return None if self.trial_time_limit is None else parse_seconds(self.trial_time_limit, "trial_time_limit")

    @property
    def search_name(self) -> str | None:
        """What the search is called: an object by its class."""
        return self.search if self.search is None or isinstance(self.search, str) else type(self.search).__name__

    @property
    def scheduler_name(self) -> str:
        """What the scheduler is called: an object by its class."""
        return self.scheduler if isinstance(self.scheduler, str) else type(self.scheduler).__name__

    @property
    def most_workers(self) -> int | None:
        """The maximum number of trials at once; None for as many as fit."""
        return 1 if self.in_process else self.max_workers

    @property
    def buffer_bytes(self) -> int:
        """The memory that stays free on each device, in bytes."""
        return int(self.gpu_memory_buffer_gb * GB)

    @property
    def given_by(self) -> str:
        """The option by which every trial is given the same memory."""
        return "model_memory_gb" if self.memory_gb is None else "memory_gb"

    @property
    def given_gb(self) -> float | None:
        """The memory that every trial is given, in GB; None if it is estimated or a function decides."""
        if callable(self.memory_gb):
            return None
        return self.model_memory_gb if self.memory_gb is None else self.memory_gb

    @property
    def packing_used(self) -> Packing:
        """The packing that was asked for, or the default that goes with the estimates."""
        return self.packing or ("per-trial" if self.estimates_memory or callable(self.memory_gb) else "uniform")

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


def _check_output(path: Path) -> None:
    """Refuses a folder that has files, or that cannot be made; makes nothing."""
    try:
        if path.is_dir():
            check_empty(path)
    except OSError as error:
        raise ParameterError("output", str(path), "cannot be read", str(error.strerror)) from error
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise ParameterError("output", str(path), "cannot be written", f"{existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ParameterError("output", str(path), "cannot be written", f"no permission in {existing}")
