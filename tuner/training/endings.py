"""How a training ends early, and what it leaves behind."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from tuner.errors import TunerError
from tuner.trial import Phase

REPORTS = 64  # that a checkpoint keeps, the last ones: a worker is never that far ahead of its study


class Diverged(TunerError):
    """The training loss is not finite or has exploded, or the metric was never a finite number.

    ``metrics`` are those that the program returned nevertheless.
    """

    def __init__(self, message: str, metrics: Mapping[str, float] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.metrics = dict(metrics)


class Pruned(TunerError):
    """The trial was pruned before its last epoch. ``metrics`` belong to its best epoch, without the test split."""

    def __init__(self, metrics: Mapping[str, float]) -> None:
        super().__init__(type(self).__name__)
        self.metrics = dict(metrics)


class Paused(Pruned):
    """The member of a population has its next checkpoint. ``metrics`` belong to that."""


class Stopped(TunerError):
    """The study ends. The trial has written its checkpoint, if that was possible."""


@dataclass(frozen=True)
class Fit:
    """The result of a training."""

    metrics: dict[str, float]  # ``val_…``, ``test_…`` and ``train_loss`` of epoch ``best_epoch``
    # What is kept of the best epoch: the model's state on the CPU, or what a program reported as its checkpoint.
    weights: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, object] = field(
        default_factory=dict
    )  # a folder's files as tensors of bytes, by relative path
    unkept: str = ""  # why a program's checkpoint of the best epoch is in neither
    left: bool = False  # whether the program still runs, as its time was over


def phase_of(error: BaseException) -> Phase:
    """The phase in which ``fit`` or a program raised this error; empty if neither did."""
    phase: Phase = getattr(error, "tuner_phase", "")
    return phase


@contextmanager
def phases() -> Iterator[Callable[[Phase], None]]:
    """Yields a function that enters a phase, from "start" on. An exception of the block gets the last phase."""
    entered: list[Phase] = ["start"]
    try:
        yield entered.append
    except Exception as error:
        error.tuner_phase = entered[-1]  # type: ignore[attr-defined]
        raise
