"""A trial's checkpoint file. It is written at intervals and read when the trial is resumed.

It holds everything that the remaining training depends on, so that a resumed training gives the same result.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from tuner.errors import WorkloadError
from tuner.machine.caps import is_out_of_memory
from tuner.machine.safe_files import regular, replacing
from tuner.training.endings import Stopped
from tuner.trial import ACCUMULATION, CHECKPOINTING, CUDA_GRAPHS, EVALUATION_PARTS, OFFLOADING, Trial


@dataclass
class TrainingState:
    """The progress of a training."""

    epoch: int = 0  # the number of finished epochs
    first_loss: float | None = None  # the loss of the first step
    best: dict[str, float] = field(default_factory=dict)  # the metrics of the best epoch so far
    weights: dict[str, Tensor] = field(default_factory=dict)  # the model's state after the best epoch, on the CPU
    schedule: dict[str, object] = field(default_factory=dict)  # the state of the workload's own ``lr_schedule``
    seconds: float = 0.0  # that training took up to here
    reports: list[tuple[int, Mapping[str, float]]] = field(
        default_factory=list
    )  # the last ``REPORTS``: epochs with their metrics


class Checkpoint:
    """One trial's file in a folder. A fault of the file never stops the trial; ``faults`` lists the faults."""

    def __init__(
        self, folder: Path, trial: Trial, every_seconds: float, stop_asked: Callable[[], bool] = lambda: False
    ) -> None:
        """Nothing is written if the folder does not exist.

        ``every_seconds`` is the interval between two files. ``stop_asked`` is called before every epoch and returns
        whether the study ends.
        """
        self._folder = folder
        self._path = folder / f"{trial.trial_id}.pt"
        self._every_seconds = every_seconds
        self._stop_asked = stop_asked
        self._last = self._began = time.monotonic()
        self.earlier_seconds = 0.0  # of the training that it goes on with
        self._kept = 0  # the epoch in the file
        self._faults: dict[str, str] = {}
        # These options change only the memory or the time of a training, not its result.
        without = (ACCUMULATION, CHECKPOINTING, CUDA_GRAPHS, EVALUATION_PARTS, OFFLOADING)
        config = {key: value for key, value in trial.config.items() if key not in without}
        self._of = {"workload": trial.workload, "config": config, "seed": trial.seed}
        self._parent = folder / f"{trial.parent}.pt" if trial.parent else None
        self._paused = folder / f"{trial.pause}.pt"
        if trial.parent:
            self._of["parent"] = trial.parent

    @property
    def faults(self) -> tuple[str, ...]:
        """The latest fault in reading and the latest in writing, one line each."""
        return tuple(self._faults.values())

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState | None:
        """Restores the model, the optimizer and torch's random state from the file, if there is one.

        Returns the progress; None if the file cannot be used. Then model and optimizer may be partly restored.
        """
        if self._path.exists() and ((progress := self._read(model, optimizer)) or not self._parent):
            return progress
        self._faults.clear()  # a file of another attempt, which had taken over something else
        return self._take_over(self._parent, model, optimizer) if self._parent else TrainingState()

    def _take_over(self, parent: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
        """Begins with another trial's checkpoint, or an earlier one of its own, but with its own hyperparameters."""
        if not parent.exists():
            self._faults["read"] = f"checkpoint {parent.name} is gone: training begins anew"
            return TrainingState()
        groups = optimizer.param_groups
        settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        content = torch.load(regular(parent), map_location="cpu", weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        for group, values in zip(optimizer.param_groups, settings, strict=True):
            group |= values
        progress = TrainingState(**content["progress"])
        self.earlier_seconds, progress.reports = progress.seconds, []
        return progress

    def _read(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState | None:
        try:
            content = torch.load(regular(self._path), map_location="cpu", weights_only=True)
            if any(content.get(key) != value for key, value in self._of.items()):
                self._faults["read"] = f"checkpoint {self._path.name} not used: it belongs to another training"
                return None
            model.load_state_dict(content["model"])
            optimizer.load_state_dict(content["optimizer"])
            progress = TrainingState(**content["progress"])
            _set_random_state(content["random"])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            why = f"it is damaged, or of an earlier version ({type(error).__name__})"
            self._faults["read"] = f"checkpoint {self._path.name} not used: {why}"
            return None
        self._kept, self.earlier_seconds = progress.epoch, progress.seconds
        return progress

    def stop_if_asked(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingState) -> None:
        """Writes the file and raises ``Stopped`` if the study ends. It is called between two epochs."""
        if self._stop_asked():
            if progress.epoch > self._kept:
                self._save(model, optimizer, progress)
            raise Stopped(f"stopped after epoch {progress.epoch}")

    def save_if_due(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingState) -> None:
        """Writes the file if the interval has passed."""
        if time.monotonic() - self._last >= self._every_seconds:
            self._save(model, optimizer, progress)

    def pause(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingState) -> None:
        """Writes the checkpoint that this trial or another one takes over; raises ``WorkloadError`` if it cannot."""
        self._save(model, optimizer, progress)
        if self._kept != progress.epoch or not self._path.exists():
            raise WorkloadError(self._faults.get("write") or f"checkpoint not written: no folder {self._folder}")
        os.replace(self._path, self._paused)

    def _save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingState) -> None:
        """Writes the file under another name first, so that a complete file always exists."""
        if not self._folder.is_dir():
            return
        state = model.state_dict()
        # A workload's constants are as large as its data, and a resumed trial has them again.
        weights = {name: value for name, value in progress.weights.items() if name in state}
        seconds = self.earlier_seconds + time.monotonic() - self._began
        content = {
            **self._of,
            "progress": {**vars(progress), "weights": weights, "seconds": seconds},
            "model": state,
            "optimizer": optimizer.state_dict(),
            "random": _random_state(),
        }
        try:
            with replacing(self._path) as file:
                torch.save(content, file)
            self._kept = progress.epoch
            self._faults.pop("write", None)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError from OSError
            self._faults["write"] = f"checkpoint not written: {_reason(error)}"
        self._last = time.monotonic()


def _reason(error: BaseException | None) -> str:
    """The system's message, if an OSError is among the causes; otherwise the error's first line."""
    origin = error
    while origin is not None:
        if isinstance(origin, OSError) and origin.strerror:
            return origin.strerror
        origin = origin.__cause__ or origin.__context__
    return str(error).partition("\n")[0]


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def _set_random_state(state: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
