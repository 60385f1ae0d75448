"""The weights of a trial that has not completed: those of the best epoch before its last checkpoint."""

from pathlib import Path

from tuner.execution.worker import to_bytes
from tuner.machine.safe_files import regular
from tuner.training.endings import Fit
from tuner.training.program_checkpoints import ProgramCheckpoints, files_of
from tuner.trial import Trial
from tuner.workloads.base import needs_workload
from tuner.workloads.micro_batches import divided
from tuner.workloads.program import Program
from tuner.workloads.task import TrainingTask


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
