"""Where a trial has got to, in a file: written now and then, and looked for when the trial is run again.

It holds all that the rest of a training depends on, so that one that was interrupted ends as if it had not been.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from tuner.errors import TunerError
from tuner.machine.atomic_files import replacing
from tuner.machine.caps import is_out_of_memory
from tuner.trial import ACCUMULATION, CHECKPOINTING, OFFLOADING, Trial


class Stopped(TunerError):
    """The study ends, and the trial has kept what it had reached, as far as that could be written."""


@dataclass
class TrainingState:
    """How far a training has come."""

    epoch: int = 0  # how many are finished
    first_loss: float | None = None  # of the very first step
    best: dict[str, float] = field(default_factory=dict)  # metrics of the epoch that is best so far
    weights: dict[str, Tensor] = field(default_factory=dict)  # the model's state after it, on the CPU


class Checkpoint:
    """One trial's file in a folder. Whatever is wrong with it, the trial goes on, and ``faults`` say what was."""

    def __init__(
        self, folder: Path, trial: Trial, every_seconds: float, stop_asked: Callable[[], bool] = lambda: False
    ) -> None:
        """Reads and writes nothing yet; nothing is kept if the folder does not exist.

        A file is written if the last one, or the beginning, is ``every_seconds`` ago. ``stop_asked`` tells before
        every epoch whether the study ends.
        """
        self._folder = folder
        self._path = folder / f"{trial.trial_id}.pt"
        self._every_seconds = every_seconds
        self._stop_asked = stop_asked
        self._last = time.monotonic()
        self._kept = 0  # the epoch that the file has
        self._faults: dict[str, str] = {}
        # How many micro-batches a batch is taken in, and what is kept where, is no part of what is trained.
        without = (ACCUMULATION, CHECKPOINTING, OFFLOADING)
        config = {key: value for key, value in trial.config.items() if key not in without}
        self._of = {"workload": trial.workload, "config": config, "seed": trial.seed}

    @property
    def faults(self) -> tuple[str, ...]:
        """What could not be read or written, a line each; the latest of a kind."""
        return tuple(self._faults.values())

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState | None:
        """Puts the model, the optimizer and torch's random numbers where the file, if there is one, left them.

        Returns how far that was; None if it cannot be used: then they may be half changed.
        """
        if not self._path.exists():
            return TrainingState()
        try:
            content = torch.load(self._path, map_location="cpu", weights_only=True)
            if any(content[key] != value for key, value in self._of.items()):
                self._faults["read"] = f"checkpoint {self._path.name} not used: it is of another training"
                return None
            model.load_state_dict(content["model"])
            optimizer.load_state_dict(content["optimizer"])
            progress = TrainingState(**content["progress"])
            _set_random_state(content["random"])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._faults["read"] = f"checkpoint {self._path.name} not used: it is damaged ({type(error).__name__})"
            return None
        self._kept = progress.epoch
        return progress

    def stop_if_asked(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingState) -> None:
        """Between two epochs: keeps what has been reached and raises ``Stopped``, if the study ends."""
        if self._stop_asked():
            if progress.epoch > self._kept:
                self._save(model, optimizer, progress)
            raise Stopped(f"stopped after epoch {progress.epoch}")

    def save_if_due(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingState) -> None:
        """Writes the file if it is time for it."""
        if time.monotonic() - self._last >= self._every_seconds:
            self._save(model, optimizer, progress)

    def _save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingState) -> None:
        """Writes the file under another name first, so that it is whole or the one before."""
        if not self._folder.is_dir():
            return
        content = {
            **self._of,
            "progress": vars(progress),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": _random_state(),
        }
        try:
            _write(self._path, content)
            self._kept = progress.epoch
            self._faults.pop("write", None)
        except (OSError, RuntimeError) as error:  # torch's, raised from the other
            self._faults["write"] = f"checkpoint not written: {_reason(error)}"
        self._last = time.monotonic()


def _write(path: Path, content: Mapping[str, object]) -> None:
    with replacing(path) as partial, partial.open("wb") as file:
        torch.save(content, file)


def _reason(error: BaseException | None) -> str:
    """What the system said, if it is in what the error came from; else the error's own first line."""
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
