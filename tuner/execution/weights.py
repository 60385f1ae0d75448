"""The content of ``best.pt``: of a completed trial, and of one that has not completed by its last checkpoint."""

import io
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import ExecutionError
from tuner.machine.caps import MMAP_THRESHOLD_BYTES
from tuner.machine.safe_files import regular
from tuner.training.endings import Fit
from tuner.training.program_checkpoints import ProgramCheckpoints, files_of
from tuner.trial import Trial
from tuner.values import encode
from tuner.workloads.base import needs_workload
from tuner.workloads.micro_batches import divided
from tuner.workloads.program import Program
from tuner.workloads.task import TrainingTask


@dataclass(frozen=True)
class WeightsLost:
    """Replaces the weights of a completed trial that could not be written as a file."""

    reason: str


def weights_of(event: object) -> bytes:
    """The weights that follow a completed trial's outcome; raises ``ExecutionError`` if none came."""
    if isinstance(event, bytes):
        return event
    raise ExecutionError(event.reason if isinstance(event, WeightsLost) else "the worker ended before it sent them")


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


def weights_so_far(task: TrainingTask, trial: Trial, folder: Path) -> bytes:
    """The content of ``best.pt`` by the trial's checkpoint in a folder; empty if there is none."""
    paused = trial.parent if trial.parent.partition("@")[0] == trial.trial_id else ""  # not another one's
    if isinstance(task.workload, Program):
        return _of_program(trial, folder, paused)
    files = (folder / f"{name}.pt" for name in (trial.trial_id, paused) if name)
    if (file := next((file for file in files if file.exists()), None)) is None:
        return b""
    import torch

    from tuner.training.step import constants, place

    state = torch.load(regular(file), map_location="cpu", weights_only=True)["progress"]
    if not state["weights"]:
        return b""
    workload = needs_workload(task.workload, "a model")
    fixed = constants(workload, place(workload, divided(trial.config), task.data, "cpu"))
    return to_bytes(trial, Fit(state["best"], {**state["weights"], **fixed}))


def _of_program(trial: Trial, folder: Path, paused: str) -> bytes:
    store = ProgramCheckpoints(folder, trial)
    if store.is_empty and not (paused and (folder / paused).exists()):
        return b""
    progress = store.restore()
    if (kept := store.best(progress)) is None:
        return b""
    fit = Fit(progress.best, files=files_of(kept)) if isinstance(kept, Path) else Fit(progress.best, kept)
    return to_bytes(trial, fit, program=True)
