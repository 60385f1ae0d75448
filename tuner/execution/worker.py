"""One trial in one process: the same code under Ray and in the in-process twin."""

from __future__ import annotations

import gc
import io
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import TunerError
from tuner.execution.stop_requests import EndRequests
from tuner.machine.caps import MMAP_THRESHOLD_BYTES, capped, is_out_of_memory
from tuner.machine.peak import PeakMeter
from tuner.trial import GB, MB, Device, EpochReport, Outcome, Phase, Placement, Status, Trial
from tuner.workloads.contract import told
from tuner.workloads.task import TrainingTask

if TYPE_CHECKING:
    from tuner.training.checkpoints import Checkpoint
    from tuner.training.loop import Fit

Event = EpochReport | Outcome | bytes

# Where in torch's source an allocation failed: in front of what it says of it.
ENFORCE = re.compile(r"^\[enforce fail at [^\]]*\] \S+ == \S+\. ")

# A worker with more than this left of its trials is not used again: what is left is taken from the next trial's cap,
# and so much every need has to spare (``tuner.estimation.calibration.HEADROOM_BYTES``). After 56 trials of GraphSAGEs
# of 14 to 670 MiB and an MLP, in 8 workers, it was 5 MiB or less, but for 3 times 13 to 23 and 4 times 32 to 56.
LEFT_BYTES = 32 * MB


@dataclass(frozen=True)
class TrialOptions:
    """What a study asks of its workers.

    Attributes:
        caps: end a trial that takes more than its share of the device.
        checkpoints: the folder in which a trial keeps what it has reached; None, or a folder that this machine does
            not have, for nowhere.
        checkpoint_seconds: between two of a trial's checkpoints, and before its first; it writes another as it is
            stopped by the folder's ``EndRequests``.
    """

    caps: bool = True
    checkpoints: Path | None = None
    checkpoint_seconds: float = 60.0


class ShareTooSmall(TunerError):
    """A trial's share is less than its worker takes before the first tensor."""


def run_trial(task: TrainingTask, placement: Placement, meter: PeakMeter, options: TrialOptions) -> Iterator[Event]:
    """Trains a placed trial of this task.

    Yields an ``EpochReport`` as training begins and after each epoch, then the ``Outcome``, then, if it is
    completed, the content of its ``best.pt``. One that was asked to end by ``EndRequests.prune`` is "pruned", and
    "interrupted" if it was asked to stop. Nothing that a trial raises gets out. The cap holds while the trial
    computes, and at no moment at which an event is on its way.
    """
    began = time.perf_counter()
    attempt = _Attempt(placement)
    yield from attempt.train(task, meter, options)
    peak, left = attempt.measure(meter)
    yield Outcome(
        trial=placement.trial,
        status=attempt.status,
        placement=placement,
        metrics=attempt.metrics,
        epochs=attempt.epochs,
        seconds=time.perf_counter() - began,
        peak_bytes=peak,
        error=attempt.error,
        traceback=attempt.traceback,
        phase=attempt.phase,
        # A failed kernel leaves a CUDA context that fails everything after it, and memory that ran out in the middle
        # of a late import leaves a module half loaded.
        reusable=attempt.status in ("completed", "diverged", "pruned") and left is not None and left <= LEFT_BYTES,
    )
    if attempt.weights:
        yield attempt.weights


@dataclass
class _Attempt:
    """What comes of a trial: plain values only, none of its tensors or exceptions."""

    placement: Placement
    status: Status = "completed"
    phase: Phase = ""
    epochs: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    weights: bytes = b""
    error: str = ""
    traceback: str = ""

    def train(self, task: TrainingTask, meter: PeakMeter, options: TrialOptions) -> Iterator[EpochReport]:
        """Trains under the cap, yields the reports and notes how it ended."""
        checkpoint = None
        try:
            import torch

            from tuner.training.loop import fit

            device, trial = self.placement.device, self.placement.trial
            meter.start()
            torch.set_num_threads(self.placement.threads)
            checkpoint = _checkpoint(trial, options)
            pruned = partial(EndRequests(options.checkpoints).prune_asked, trial.trial_id)
            training = fit(task.workload, trial, task.data, torch_device(device), checkpoint, prune_asked=pruned)
            while True:
                with _cap(self.placement, meter, options):
                    said = next(training)
                if not isinstance(said, EpochReport):
                    break
                self.epochs = said.epoch
                yield replace(said, memory_bytes=_taken_bytes(meter))
            training.close()  # of all that it held, only the weights are needed any more
            self.metrics = said.metrics
            self.weights = to_bytes(trial, said)
        except Exception as error:
            self._fail(error)
        self.error = "; ".join(filter(None, [self.error, *(checkpoint.faults if checkpoint else ())]))

    def measure(self, meter: PeakMeter) -> tuple[int | None, int | None]:
        """The trial's peak, and what it has left behind, in bytes; None where the device does not answer any more.

        The peak is read before the clean-up, and that is done when the attempt's frames and exceptions are gone: they
        would keep the trial's tensors alive.
        """
        peak = None
        try:
            peak = meter.peak_bytes()
            gc.collect()
            return peak, meter.left_bytes() - (len(self.weights) if self.placement.device.kind == "cpu" else 0)
        except Exception as error:  # a failed kernel has left a CUDA context that fails everything after it
            self.error = self.error or f"the worker cannot be used again: {_one_line(error)}"
            return peak, None

    def _fail(self, error: Exception) -> None:
        from tuner.training.checkpoints import Stopped
        from tuner.training.loop import Pruned, phase_of

        if isinstance(error, Stopped):
            self.status = "interrupted"
            return
        if isinstance(error, Pruned):
            self.status, self.metrics = "pruned", error.metrics
            return
        self.status = classify(error)
        self.phase = phase_of(error) or ("evaluation" if self.metrics else "start")
        own = told(error) if self.status == "failed" else ""  # where memory ran out says nothing
        self.error, self.traceback = own or _one_line(error), traceback.format_exc()
        self.metrics, self.weights = {}, b""


def _checkpoint(trial: Trial, options: TrialOptions) -> Checkpoint | None:
    from tuner.training.checkpoints import Checkpoint

    folder = options.checkpoints
    return Checkpoint(folder, trial, options.checkpoint_seconds, EndRequests(folder).stop_asked) if folder else None


def _taken_bytes(meter: PeakMeter) -> int | None:
    """The trial's peak so far; a device that does not tell is no reason to end the trial here."""
    try:
        return meter.peak_bytes()
    except Exception:
        return None


def torch_device(device: Device) -> str:
    """What torch calls a worker's device: it sees no other GPU than the one it is pinned to."""
    return "cuda:0" if device.kind == "cuda" else "cpu"


def classify(error: Exception) -> Status:
    """The status that an exception stands for: by its type, its text where torch has no type, and its causes."""
    from tuner.training.loop import Diverged

    if isinstance(error, ShareTooSmall) or is_out_of_memory(error):
        return "out_of_memory"
    return "diverged" if isinstance(error, Diverged) else "failed"


def _cap(placement: Placement, meter: PeakMeter, options: TrialOptions) -> AbstractContextManager[None]:
    """Holds the trial to its share less what the worker took of it before its first trial.

    Raises:
        ShareTooSmall: nothing is left of it.
    """
    if not options.caps:
        return nullcontext()
    cap = placement.limit_bytes - meter.context_bytes
    if cap <= 0:
        raise ShareTooSmall(
            f"the trial has {placement.limit_bytes / GB:.3f} GB, and a worker on {placement.device.label} takes "
            f"{meter.context_bytes / GB:.3f} GB before the first tensor"
        )
    return capped(placement.device, cap, meter.base_bytes)


def _one_line(error: Exception) -> str:
    text = " ".join(ENFORCE.sub("", str(error)).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def to_bytes(trial: Trial, result: Fit) -> bytes:
    """What ``best.pt`` holds: plain values and tensors, so that ``torch.load(weights_only=True)`` reads it."""
    import torch

    content = {
        "workload": trial.workload,
        "name": trial.name,
        "config": dict(trial.config),
        "seed": trial.seed,
        "metrics": result.metrics,
        "weights": result.weights,
    }
    # A block that is mapped by itself: among what the trial has freed it would keep the heap from shrinking.
    buffer = io.BytesIO(bytes(MMAP_THRESHOLD_BYTES))
    torch.save(content, buffer)
    buffer.truncate()
    return buffer.getvalue()
