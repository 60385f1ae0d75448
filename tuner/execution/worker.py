"""Runs one trial in one process: the same code under Ray and in the in-process twin."""

from __future__ import annotations

import gc
import io
import re
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import ExecutionError, MissingMetric, TunerError, joined, one_line
from tuner.execution.nodes import oom_kills
from tuner.execution.stop_requests import StopRequests
from tuner.machine.caps import (
    MMAP_THRESHOLD_BYTES,
    LackOfMemory,
    capped,
    is_out_of_memory,
    is_short_of_ram,
    lack_of_memory,
    lacks_shared_memory,
    lost_loader,
)
from tuner.machine.peak import PeakMeter, data_bytes
from tuner.machine.processes import MORE_SHARED, SHARED
from tuner.training.endings import Diverged, Fit, Paused, Pruned, Stopped, phase_of
from tuner.training.process_state import put_back
from tuner.trial import (
    GB,
    MB,
    Began,
    Device,
    EpochReport,
    Lost,
    Outcome,
    Phase,
    Placement,
    Question,
    ShortOf,
    Status,
    Trial,
)
from tuner.values import encode
from tuner.workloads.base import needs_workload
from tuner.workloads.contract import method_failure, traceback_of
from tuner.workloads.program import Program
from tuner.workloads.task import TrainingTask

if TYPE_CHECKING:
    from tuner.training.checkpoints import Checkpoint
    from tuner.training.program_checkpoints import ProgramCheckpoints


@dataclass(frozen=True)
class WeightsLost:
    """Replaces the weights of a completed trial that could not be written as a file."""

    reason: str


WorkerEvent = Began | EpochReport | Question | Outcome | bytes | WeightsLost

LOGS = "logs"  # the folder of output in a study's folder
WORKER = "worker"  # the name of the log for output between trials

# The prefix of a message with the place in torch's source where an allocation failed.
ENFORCE = re.compile(r"^\[enforce fail at [^\]]*\] \S+ == \S+\. ")

LOADER_KILLED = "the kernel killed a data loader's process, as the machine ran out of memory"

# A worker in which trials have left more memory is not used again. Every need includes as much headroom
# (``tuner.estimation.calibration.HEADROOM_BYTES``). After 56 trials (GraphSAGEs of 14 to 670 MiB and an MLP) in 8
# workers it was at most 5 MiB, except for 13 to 23 MiB after 3 trials and 32 to 56 MiB after 4.
LEFT_BYTES = 32 * MB


@dataclass(frozen=True)
class TrialOptions:
    """A study's options for its workers."""

    caps: bool = True
    checkpoints: Path | None = None  # the folder for checkpoints; ignored if this machine does not have it
    # The time between a trial's checkpoints and before the first. ``StopRequests`` cause another one.
    checkpoint_seconds: float = 60.0
    fresh: bool = False  # whether each trial has a process of its own
    imports: tuple[str, ...] = ()  # the modules that trials need, which a process imports before their code

    @property
    def logs(self) -> Path | None:
        """The folder for output, which need not exist yet; None if this machine does not have the study's folder."""
        return self.checkpoints.parent / LOGS if self.checkpoints and self.checkpoints.is_dir() else None

    def log(self, name: str) -> Path | None:
        """The file for the output of a trial, by its id, or of a worker; None without a folder."""
        return self.logs / f"{name}.log" if self.logs else None


class ShareTooSmall(TunerError):
    """A trial's share is smaller than the memory that its worker takes before the first tensor."""


def run_trial(
    task: TrainingTask, placement: Placement, meter: PeakMeter, options: TrialOptions, remark: str = ""
) -> Iterator[WorkerEvent]:
    """Trains a placed trial of this task; ``remark`` is for its row.

    Yields an ``EpochReport`` as training begins and after each epoch, then the ``Outcome``, then the content of
    ``best.pt`` if the trial is completed, or why there is none; it is empty if a program reported no checkpoint.
    ``StopRequests`` make it "pruned" or "interrupted". Exceptions of the trial are caught. The cap applies while the
    trial computes, but not while events are sent.
    """
    started = time.perf_counter()
    attempt = _TrialExecution(placement)
    with put_back():
        yield from attempt.train(task, meter, options)
    peak, left = attempt.measure(meter)
    host_peak = meter.host_peak_bytes()
    meter.stop()
    if attempt.wanted_bytes:
        peak = max(peak or 0, meter.context_bytes + attempt.wanted_bytes)
    yield Outcome(
        trial=placement.trial,
        status=attempt.status,
        placement=placement,
        metrics=attempt.metrics,
        epochs=attempt.epochs,
        seconds=attempt.earlier_seconds + time.perf_counter() - started,
        peak_bytes=peak,
        error=joined(attempt.error, remark),
        traceback=attempt.traceback,
        phase=attempt.phase,
        lost=attempt.lost,
        # A failed kernel breaks the CUDA context. An import without enough memory leaves half a module.
        reusable=attempt.status in ("completed", "diverged", "pruned", "paused")
        and left is not None
        and left <= LEFT_BYTES,
        host_peak_bytes=host_peak,
        short_of=attempt.short_of,
        hopeless=attempt.hopeless,
    )
    if attempt.status == "completed":
        yield WeightsLost(attempt.unkept) if attempt.unkept else attempt.weights


def weights_of(event: WorkerEvent | None) -> bytes:
    """The weights that follow a completed trial's outcome; raises ``ExecutionError`` if none came."""
    if isinstance(event, bytes):
        return event
    raise ExecutionError(event.reason if isinstance(event, WeightsLost) else "the worker ended before it sent them")


@dataclass
class _TrialExecution:
    """The result of a trial in plain values, without its tensors and exceptions."""

    placement: Placement
    status: Status = "completed"
    phase: Phase = ""
    lost: Lost = ""
    epochs: int = 0
    earlier_seconds: float = 0.0  # of the training before the checkpoint with which it went on
    metrics: dict[str, float] = field(default_factory=dict)
    weights: bytes = b""
    unkept: str = ""  # why there are no weights
    error: str = ""
    traceback: str = ""
    short_of: ShortOf = ""
    kills: int = 0  # ``oom_kills`` before it
    hopeless: bool = False
    wanted_bytes: int = 0  # what it held as an allocation failed, and what that asked for; 0 if unknown

    def train(self, task: TrainingTask, meter: PeakMeter, options: TrialOptions) -> Iterator[EpochReport | Question]:
        """Trains under the cap, yields the reports and records how it ended."""
        checkpoint: Checkpoint | ProgramCheckpoints | None = None
        notes: list[str] = []
        try:
            self.kills = oom_kills()
            meter.start()
            training, checkpoint = _training(task, self.placement, options, notes)
            if self.placement.others or self.placement.rank:
                meter.start()  # what its ranks exchange by is no part of the trial
            began, busy = time.perf_counter(), time.process_time()
            while True:
                with _cap(self.placement, meter, options):
                    event = next(training)
                if isinstance(event, Question):
                    yield event
                    continue
                if not isinstance(event, EpochReport):
                    break
                self.epochs = event.epoch
                if event.again:
                    yield event
                    continue
                seconds, share = time.perf_counter() - began, event.core_share
                if share is None and self.placement.device.kind == "cuda":  # including spinning for the GPU
                    share = (time.process_time() - busy) / seconds
                yield replace(
                    event,
                    memory_bytes=_peak_bytes(meter),
                    host_peak_bytes=meter.host_peak_bytes(),
                    seconds=seconds,
                    core_share=share,
                )
                began, busy = time.perf_counter(), time.process_time()
            training.close()  # frees everything but the weights
            self.metrics = event.metrics
            if event.weights or event.files:
                self._keep(event, program=isinstance(task.workload, Program))
            else:
                self.unkept = event.unkept
        except Exception as error:
            share_bytes = self.placement.limit_bytes - meter.context_bytes
            self._fail(error, share_bytes, _lack_of_memory(error, self.placement, meter, options))
        if checkpoint:
            self.earlier_seconds, notes = checkpoint.earlier_seconds, [*notes, *checkpoint.faults]
        self.error = joined(self.error, *notes)

    def _keep(self, fit: Fit, *, program: bool) -> None:
        """Writes the weights as a file. Without them a trial that has its metrics is completed as well."""
        try:
            self.weights = to_bytes(self.placement.trial, fit, program=program)
        except Exception as error:
            self.unkept = _one_line(error)

    def measure(self, meter: PeakMeter) -> tuple[int | None, int | None]:
        """The trial's peak and the memory that it has not freed, in bytes; None if the device does not answer.

        The peak is read before the garbage collection, which must wait until the attempt's frames and exceptions are
        gone, as they reference the trial's tensors.
        """
        peak = None
        try:
            peak = meter.peak_bytes()
            gc.collect()
            return peak, meter.left_bytes() - (len(self.weights) if self.placement.device.kind == "cpu" else 0)
        except Exception as error:  # a failed kernel has broken the CUDA context
            self.error = self.error or f"the worker cannot be used again: {_one_line(error)}"
            return peak, None

    def _fail(self, error: Exception, share_bytes: int, lack: LackOfMemory | None) -> None:
        """Records an exception of the trial, which may take ``share_bytes`` beside its context."""
        if isinstance(error, Stopped):
            self.status = "interrupted"
            return
        if isinstance(error, Pruned):
            self.status = "paused" if isinstance(error, Paused) else "pruned"
            self.metrics = error.metrics
            return
        self.status, self.hopeless = classify(error), isinstance(error, MissingMetric)
        loader_killed = lost_loader(error) and oom_kills() > self.kills
        if loader_killed:  # as for a killed worker, others may have held the memory
            self.status, self.lost = "out_of_memory", "worker"
        no_ram = self.status == "out_of_memory" and (loader_killed or is_short_of_ram(error))
        if no_ram and self.placement.device.kind == "cuda":
            self.short_of = "RAM"
        if lack and lack.within(share_bytes):
            self.lost = "memory"
        elif lack and not self.short_of and lack.in_use_bytes is not None:
            self.wanted_bytes = lack.in_use_bytes + (lack.requested_bytes or 0)
        elif isinstance(error, ShareTooSmall):  # its worker takes more than was expected, and it no less
            self.wanted_bytes = self.placement.estimate.reserved_bytes
        self.phase = phase_of(error) or ("evaluation" if self.metrics else "start")
        # The place where memory ran out is irrelevant.
        own = method_failure(error) if self.status == "failed" else str(lack or "")
        own = LOADER_KILLED if loader_killed else own or _one_line(error)
        hint = f"; {SHARED} may be full: {MORE_SHARED}" if lacks_shared_memory(error) else ""
        self.error, self.traceback = own + hint, traceback_of(error)
        self.metrics, self.weights = error.metrics if isinstance(error, Diverged) else {}, b""


def _training(
    task: TrainingTask, placement: Placement, options: TrialOptions, notes: list[str]
) -> tuple[
    Generator[EpochReport | Question | Fit] | Generator[EpochReport | Fit], Checkpoint | ProgramCheckpoints | None
]:
    """A trial's training, not yet begun, and its checkpoints. ``notes`` collects remarks for the trial's row."""
    workload, trial, folder = task.workload, placement.trial, options.checkpoints
    requests = StopRequests(folder)
    pruned = partial(requests.prune_requested, trial.trial_id)
    if isinstance(workload, Program):
        from tuner.training.program import run_program
        from tuner.training.program_checkpoints import ProgramCheckpoints

        store = ProgramCheckpoints(folder, trial)
        stopped = requests.stop_requested
        program = run_program(
            workload, trial, task.data, task.objective, store, place=placement, stop_asked=stopped, prune_asked=pruned
        )
        return program, store
    import torch

    from tuner.training.checkpoints import Checkpoint
    from tuner.training.exchange import Ranks
    from tuner.training.loop import fit
    from tuner.training.process_state import seed_of
    from tuner.training.ranks import together
    from tuner.workloads.micro_batches import divided

    torch.set_num_threads(placement.threads)
    seconds = options.checkpoint_seconds
    checkpoint = Checkpoint(folder, trial, seconds, requests.stop_requested) if folder else None
    device = torch_device(placement.device)
    model = needs_workload(workload, "training")
    training = fit(
        model,
        replace(trial, config=divided(trial.config)),
        task.data,
        device,
        checkpoint,
        last_epoch=task.last_epoch,
        prune_asked=pruned,
        objective=task.objective,
        notes=notes,
        ranks=Ranks(placement.rank, trial.ranks, seed_of(trial)) if trial.ranks > 1 else None,
    )
    return together(training, placement) if trial.ranks > 1 else training, checkpoint


def _peak_bytes(meter: PeakMeter) -> int | None:
    """The trial's peak so far; None if the device does not answer."""
    try:
        return meter.peak_bytes()
    except Exception:
        return None


def torch_device(device: Device) -> str:
    """Torch's name for a worker's device; a worker sees only the GPU to which it is pinned."""
    return "cuda:0" if device.kind == "cuda" else "cpu"


def classify(error: Exception) -> Status:
    """The status of a trial that raised an exception."""
    if isinstance(error, ShareTooSmall) or is_out_of_memory(error):
        return "out_of_memory"
    return "diverged" if isinstance(error, Diverged) else "failed"


def _cap(placement: Placement, meter: PeakMeter, options: TrialOptions) -> AbstractContextManager[None]:
    """Caps the trial at its share less the worker's context."""
    if not options.caps:
        return nullcontext()
    cap = placement.limit_bytes - meter.context_bytes
    if cap <= 0:
        raise ShareTooSmall(
            f"the trial has {placement.limit_bytes / GB:.3f} GB, and a worker on {placement.device.label} takes "
            f"{meter.context_bytes / GB:.3f} GB before the first tensor"
        )
    return capped(placement.device, cap, meter.base_bytes)


def _lack_of_memory(
    error: Exception, placement: Placement, meter: PeakMeter, options: TrialOptions
) -> LackOfMemory | None:
    """The sizes in the error of a trial that ran out of memory, if it has any.

    CUDA says what its cap is and what is in use. On the CPU both are known here: beyond the worker's base, and while
    the exception's frames still hold what the trial allocated.
    """
    lack = lack_of_memory(error) if is_out_of_memory(error) else None
    if lack is None or placement.device.kind == "cuda" or not options.caps:
        return lack
    held = data_bytes()
    in_use = None if held is None else max(0, held - meter.base_bytes)
    return replace(lack, allowed_bytes=placement.limit_bytes - meter.context_bytes, in_use_bytes=in_use)


def _one_line(error: Exception) -> str:
    text = ENFORCE.sub("", one_line(error)).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def to_bytes(trial: Trial, result: Fit, *, program: bool = False) -> bytes:
    """The content of ``best.pt``: plain values and tensors, which ``torch.load(weights_only=True)`` can read."""
    import torch

    content = {
        "workload": trial.workload,
        "name": trial.name,
        "config": {key: encode(value) for key, value in trial.config.items()},
        "seed": trial.seed,
        "metrics": result.metrics,
        "weights": result.weights,
        **({"program": True, "files": result.files} if program else {}),
    }
    # A buffer that is mapped separately. On the heap it would keep the trial's freed memory from being returned.
    buffer = io.BytesIO(bytes(MMAP_THRESHOLD_BYTES))
    torch.save(content, buffer)
    buffer.truncate()
    return buffer.getvalue()
