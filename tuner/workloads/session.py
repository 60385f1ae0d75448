"""The connection of a trial's program to its study: ``tuner.report`` and ``tuner.checkpoint``."""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from tuner.errors import MissingMetric, WorkloadError, is_writable, option
from tuner.objective import Objective

State = Mapping[str, Any] | Path  # a state dict, or a folder of files
Selected = str | Sequence[str] | Mapping[str, str] | None  # logged names, or by the names to report; None for all

TRIALS = "trials"  # the folder in a study's folder that has a folder for each trial which uses it
LOGS = "logs"  # the folder of what trials print, in a study's folder

# Columns of results that are neither metrics nor hyperparameters; no metric may have such a name.
RESERVED_METRICS = (
    *("trial_id", "workload", "name", "seed", "status", "attempts", "epochs", "duration_s", "device", "gpu_fraction"),
    *("estimated_memory_gb", "peak_memory_gb", "peak_ram_gb", "error", "limit_gb", "limit_ram_gb", "short_of"),
    *("rank_peaks_gb", "parent_checkpoint", "estimated_bytes", "peak_bytes", "peak_ram_bytes", "limit_bytes"),
    *("limit_ram_bytes", "rank_peaks", "order", "code_version"),
    *("lost", "phase", "started_at", "ended_at", "study", "best_epoch"),
)


class TrialEnd(BaseException):
    """Ends a trial's program from within ``tuner.report``: the trial was pruned, or the study ends.

    It is no ``Exception``, so that a program that catches those ends, too.
    """


class ProgramPruned(Exception):
    """The program itself has pruned its trial."""


class Session(Protocol):
    """The connection of a trial's program to its study."""

    metric: str  # what trials are compared by; every report has it
    reports: int  # the number of reports so far
    returned: bool  # whether the program has returned, so that its next report is the last
    trial_id: str
    seed: int
    nothing: str  # why nothing was reported, if a callback knows that

    def report(
        self, metrics: Mapping[str, object], epoch: int | None = None, checkpoint: State | str | None = None
    ) -> None:
        """Reports metrics, and a checkpoint if there is one; returns when the study has taken them.

        Raises:
            TrialEnd: the trial was pruned, or the study ends.
            WorkloadError: the metrics or the checkpoint cannot be used.
        """

    def ask(self, question: object) -> object:
        """The study's answer to a question; raises the exception if that is the answer."""

    def tell(self, content: object) -> None:
        """Tells the study something."""

    def checkpoint(self) -> State | None:
        """The trial's last checkpoint, from an earlier attempt or the study that is resumed; None without one."""

    def folder(self) -> Path:
        """The trial's own folder, made on first use; raises ``WorkloadError`` if this machine cannot have it."""


_entered: list[tuple[int, Session]] = []  # with the threads that run the programs


def current() -> Session | None:
    """The session of the trial that this thread runs, or else this process; None outside of a trial."""
    of_thread = [session for thread, session in _entered if thread == threading.get_ident()]
    others = [session for _, session in _entered]
    return next(reversed(of_thread or others), None)


@contextmanager
def entered(session: Session) -> Iterator[None]:
    """Makes a session the current one in the block."""
    entry = threading.get_ident(), session
    _entered.append(entry)
    try:
        yield
    finally:
        _entered.remove(entry)


def is_metric_name(name: object) -> bool:
    """Whether results can have a metric of this name."""
    if not isinstance(name, str) or not is_writable(name):
        return False
    return name not in RESERVED_METRICS and not name.startswith("config/")


def to_number(value: object) -> float:
    """A metric as a number; raises as ``float`` does, and ``TypeError`` for text."""
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)  # type: ignore[arg-type]


def to_numbers(metrics: Mapping[str, object], needed: str = "") -> dict[str, float]:
    """The reported metrics as numbers.

    Raises:
        WorkloadError: there is none, or one is no number or has the name of another column.
        MissingMetric: ``needed`` is missing.
    """
    numbers = {}
    for name, value in metrics.items():
        if not is_metric_name(name):
            raise WorkloadError(f"tuner.report: no metric can be called {name!r}: choose another name")
        try:
            numbers[name] = to_number(value)
        except (TypeError, ValueError, ArithmeticError, RuntimeError):  # RuntimeError: of a tensor with several
            raise WorkloadError(f"tuner.report: {name} is {value!r:.60}: expected a number") from None
    if not numbers or (needed and needed not in numbers):
        given = ", ".join(numbers) or "nothing"
        raise MissingMetric(f"tuner.report was given {given}, but not {needed!r}, which metric names")
    return numbers


def select(logged: Mapping[str, object], metrics: Selected) -> dict[str, object]:
    """What to report of logged metrics; raises ``WorkloadError`` if one is missing, or none is a number."""
    numbers = {name: value for name, value in logged.items() if is_number(value)}
    if isinstance(metrics, str):
        metrics = [metrics]
    names = metrics if isinstance(metrics, Mapping) else {name: name for name in metrics or numbers}
    lacking = [name for name in names.values() if name not in numbers]
    if lacking or not names:
        given = ", ".join(numbers) or "no number"
        what = f", but not {lacking[0]!r}, which its metrics name" if lacking else ""
        raise WorkloadError(f"ReportCallback: {given} was logged{what}")
    return {reported: numbers[name] for reported, name in names.items()}


def never_finite(objective: Objective) -> str:
    """Explains that no report could be the best, or that the mean of those that count is no result."""
    when = (
        f"is no finite number by {option('score', objective.score)}"
        if objective.last
        else "was never a finite number"
    )
    return f"{objective.metric} {when}"


def is_number(value: object) -> bool:
    """Whether it is one number, also as a tensor."""
    return isinstance(value, Real) or getattr(value, "numel", lambda: 0)() == 1


def is_comparable(value: float | None, *, infinite: bool) -> bool:
    """Whether a metric can be compared; ``infinite`` allows infinities."""
    return value is not None and (math.isfinite(value) or (infinite and not math.isnan(value)))
