"""The training itself, in this process, which Ctrl-C breaks off at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import ExecutionError, one_line, option
from tuner.machine.caps import is_out_of_memory, lack_of_memory
from tuner.machine.devices import torch_index
from tuner.machine.interrupts import Immediate
from tuner.reporting.console import print_text
from tuner.reporting.training import TrainingProgress
from tuner.study.retraining.model_folder import remove
from tuner.study.retraining.run import Run
from tuner.trial import Device, EpochReport
from tuner.workloads.base import needs_workload
from tuner.workloads.task import TrainingTask

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.training.checkpoints import TrainingState
    from tuner.training.endings import Fit


def trained(
    run: Run, task: TrainingTask, device: Device, folder: Path, console: Console, interrupt: Immediate
) -> tuple[Fit, bool]:
    """What training leaves, and whether it was broken off; then it is the best epoch so far, without a test.

    Raises:
        KeyboardInterrupt: it was broken off before an epoch had ended.
        ExecutionError: memory has run out.
        Exception: what training raises. In all these cases the folder is gone again.
    """
    from tuner.training.checkpoints import TrainingState
    from tuner.training.endings import Fit

    progress = TrainingState()
    try:
        with _on(device, run.threads) as name:
            shown = TrainingProgress(console, task.objective)
            return _fit(run, task, name, progress, shown, interrupt), False
    except KeyboardInterrupt:
        if progress.weights:
            return Fit(progress.best, progress.weights), True
        remove(folder)
        raise
    except Exception as error:
        remove(folder)
        if is_out_of_memory(error):
            said = lack_of_memory(error) or f"out of memory: {one_line(error, 200)}"
            raise ExecutionError(f"{run.trial.name}: in epoch {progress.epoch + 1}: {said}") from error
        raise


def _fit(
    run: Run, task: TrainingTask, device: str, progress: TrainingState, shown: TrainingProgress, interrupt: Immediate
) -> Fit:
    from tuner.training.loop import fit

    notes: list[str] = []
    training = fit(
        needs_workload(task.workload, "another training"),
        run.trial,
        task.data,
        device,
        progress=progress,
        held_out=not run.all_data,
        last_epoch=run.last_epoch,
        objective=task.objective,
        notes=notes,
    )
    while True:
        with interrupt.at_once():
            said = next(training)
        if not isinstance(said, EpochReport):
            for note in notes:
                print_text(shown.console, note)
            return said
        shown.reported(said)


@contextmanager
def _on(device: Device, threads: int) -> Iterator[str]:
    """Torch's name of the device. In this block torch computes there, on the CPU with this many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if device.kind == "cpu":
            yield "cpu"
        else:
            index = _cuda_index(device)
            with torch.cuda.device(index):
                yield f"cuda:{index}"
    finally:
        torch.set_num_threads(before)


def _cuda_index(device: Device) -> int:
    index = torch_index(device)
    if index is None:
        raise ExecutionError(f"{device.label}: torch does not see this GPU: use {option('device', 'cpu')}")
    return index
