"""Runs one trial in one process: the same code under Ray and in the in-process twin."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import MissingMetric, TunerError, joined, one_line
from tuner.execution.nodes import oom_kills
from tuner.execution.preload import Launch
from tuner.execution.sent_files import Code
from tuner.execution.stop_requests import StopRequests
from tuner.execution.weights import WeightsLost, to_bytes
from tuner.machine.caps import (
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
from tuner.trial import GB, MB, Began, Device, EpochReport, Outcome, Placement, Question, Status
from tuner.workloads.base import needs_workload
from tuner.workloads.contract import method_failure, traceback_of
from tuner.workloads.program import Program
from tuner.workloads.session import LOGS
from tuner.workloads.task import TrainingTask

if TYPE_CHECKING:
    from tuner.training.checkpoints import Checkpoint
    from tuner.training.program_checkpoints import ProgramCheckpoints


WorkerEvent = Began | EpochReport | Question | Outcome | bytes | WeightsLost

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
    checkpoints: Path | None = None  # the folder for checkpoints; a node that lacks it has its own (``NodeFolder``)
    # The time between a trial's checkpoints and before the first. ``StopRequests`` cause another one.
    checkpoint_seconds: float = 60.0
    fresh: bool = False  # whether each trial has a process of its own
    in_study: bool = False  # whether trials run in the study's own process, which cannot be ended
    launch: Launch = field(default_factory=Launch)
    code: tuple[Code, ...] = ()  # for machines that lack the user's code

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
    execution = _TrialExecution(placement, meter, options)
    with put_back():
        yield from execution.train(task)
    outcome = execution.measured(remark)
    yield replace(outcome, seconds=execution.earlier_seconds + time.perf_counter() - started)
    if outcome.status == "completed":
        yield execution.weights


class _TrialExecution:
    """A trial that runs, with its outcome in plain values, without its tensors and exceptions."""

    def __init__(self, placement: Placement, meter: PeakMeter, options: TrialOptions) -> None:
        """Not begun."""
        self._placement, self._meter, self._options = placement, meter, options
        self.outcome = Outcome(placement.trial, "completed", placement)
        self.earlier_seconds = 0.0  # of the training before the checkpoint with which it went on
        self.weights: bytes | WeightsLost = b""
        self._kills = 0  # ``oom_kills`` before it
        self._left = False  # whether its program still runs
        self._wanted_bytes = 0  # what it held as an allocation failed, and what that asked for; 0 if unknown

    def train(self, task: TrainingTask) -> Iterator[EpochReport | Question]:
        """Trains under the cap, yields the reports and records how it ended."""
        checkpoint: Checkpoint | ProgramCheckpoints | None = None
        notes: list[str] = []
        meter = self._meter
        try:
            self._kills = oom_kills()
            meter.start()
            training, checkpoint = _training(task, self._placement, self._options, notes)
            if self._placement.others or self._placement.rank:
                meter.start()  # what its ranks exchange by is no part of the trial
            began, busy = time.perf_counter(), time.process_time()
            while True:
                with self._capped():
                    event = next(training)
                if isinstance(event, Question):
                    yield event
                    continue
                if not isinstance(event, EpochReport):
                    break
                self._record(epochs=event.epoch)
                if event.again:
                    yield event
                    continue
                seconds, share = time.perf_counter() - began, event.core_share
                if share is None and self._placement.device.kind == "cuda":  # including spinning for the GPU
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
            self._record(metrics=event.metrics)
            self._left = event.left
            if event.weights or event.files:
                self._keep(event, program=isinstance(task.workload, Program))
            elif event.unkept:
                self.weights = WeightsLost(event.unkept)
        except Exception as error:
            self.fail(error)
        if checkpoint:
            self.earlier_seconds, notes = checkpoint.earlier_seconds, [*notes, *checkpoint.faults]
        self._record(error=joined(self.outcome.error, *notes))

    def measured(self, remark: str) -> Outcome:
        """The outcome with the trial's peak, and whether another trial may run in the process, and with a remark.

        The peak is read before the garbage collection, which must wait until the attempt's frames and exceptions are
        gone, as they reference the trial's tensors.
        """
        meter, peak, reusable, fault = self._meter, None, False, ""
        try:
            peak = meter.peak_bytes()
            gc.collect()
            in_ram = self.weights if self._placement.device.kind == "cpu" else b""
            kept_bytes = meter.left_bytes() - (len(in_ram) if isinstance(in_ram, bytes) else 0)
            # A failed kernel breaks the CUDA context. An import without enough memory leaves half a module.
            ended_well = self.outcome.status in ("completed", "diverged", "pruned", "paused")
            reusable = ended_well and kept_bytes <= LEFT_BYTES and not self._left
        except Exception as error:  # a failed kernel has broken the CUDA context
            fault = f"the worker cannot be used again: {_one_line(error)}"
        host_peak = meter.host_peak_bytes()
        meter.stop()
        if self._wanted_bytes:
            peak = max(peak or 0, meter.context_bytes + self._wanted_bytes)
        self._record(peak_bytes=peak, host_peak_bytes=host_peak, reusable=reusable)
        return replace(self.outcome, error=joined(self.outcome.error or fault, remark))

    def fail(self, error: Exception) -> None:
        """Records an exception of the trial."""
        if isinstance(error, Stopped):
            self._record(status="interrupted")
            return
        if isinstance(error, Pruned):
            self._record(status="paused" if isinstance(error, Paused) else "pruned", metrics=error.metrics)
            return
        status, lack, short_of, lost = classify(error), self._lack_of_memory(error), "", ""
        loader_killed = lost_loader(error) and oom_kills() > self._kills
        if loader_killed:  # as for a killed worker, others may have held the memory
            status, lost = "out_of_memory", "worker"
        no_ram = status == "out_of_memory" and (loader_killed or is_short_of_ram(error))
        if no_ram and self._placement.device.kind == "cuda":
            short_of = "RAM"
        if lack and lack.within(self._cap_bytes):
            lost = "memory"
        elif lack and not short_of and lack.in_use_bytes is not None:
            self._wanted_bytes = lack.in_use_bytes + (lack.requested_bytes or 0)
        elif isinstance(error, ShareTooSmall):  # its worker takes more than was expected, and it no less
            self._wanted_bytes = self._placement.estimate.reserved_bytes
        # The place where memory ran out is irrelevant.
        text = method_failure(error) if status == "failed" else str(lack or "")
        text = LOADER_KILLED if loader_killed else text or _one_line(error)
        hint = f"; {SHARED} may be full: {MORE_SHARED}" if lacks_shared_memory(error) else ""
        self._record(
            status=status,
            lost=lost,
            short_of=short_of,
            hopeless=isinstance(error, MissingMetric),
            phase=phase_of(error) or ("evaluation" if self.outcome.metrics else "start"),
            error=text + hint,
            traceback=traceback_of(error),
            metrics=error.metrics if isinstance(error, Diverged) else {},
        )
        self.weights = b""

    def _record(self, **changes: object) -> None:
        self.outcome = replace(self.outcome, **changes)  # type: ignore[arg-type]

    def _keep(self, fit: Fit, *, program: bool) -> None:
        """Writes the weights as a file. Without them a trial that has its metrics is completed as well."""
        try:
            self.weights = to_bytes(self._placement.trial, fit, program=program)
        except Exception as error:
            self.weights = WeightsLost(_one_line(error))

    @property
    def _cap_bytes(self) -> int:
        """The trial's share less the worker's context."""
        return self._placement.limit_bytes - self._meter.context_bytes

    def _capped(self) -> AbstractContextManager[None]:
        if not self._options.caps:
            return nullcontext()
        if self._cap_bytes <= 0:
            had, taken = f"{self._placement.limit_bytes / GB:.3f} GB", f"{self._meter.context_bytes / GB:.3f} GB"
            where = self._placement.device.label
            raise ShareTooSmall(f"the trial has {had}, and a worker on {where} takes {taken} before the first tensor")
        return capped(self._placement.device, self._cap_bytes, self._meter.base_bytes)

    def _lack_of_memory(self, error: Exception) -> LackOfMemory | None:
        """The sizes in the error of a trial that ran out of memory, if it has any.

        CUDA says what its cap is and what is in use. On the CPU both are known here: beyond the worker's base, and
        while the exception's frames still hold what the trial allocated.
        """
        lack = lack_of_memory(error) if is_out_of_memory(error) else None
        if lack is None or self._placement.device.kind == "cuda" or not self._options.caps:
            return lack
        held = data_bytes()
        in_use = None if held is None else max(0, held - self._meter.base_bytes)
        return replace(lack, allowed_bytes=self._cap_bytes, in_use_bytes=in_use)


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
            *(workload, trial, task.data, task.objective, store),
            place=placement,
            stop_asked=stopped,
            prune_asked=pruned,
            own_process=not options.in_study,
            notes=notes,
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


def _one_line(error: Exception) -> str:
    text = ENFORCE.sub("", one_line(error)).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
