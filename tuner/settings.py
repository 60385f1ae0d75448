"""How a study runs, whatever it trains."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tuner.devices import DeviceChoice
from tuner.errors import InputError
from tuner.memory.estimate import Method


@dataclass(frozen=True)
class Settings:
    """The options of a study.

    Attributes:
        auto_memory: estimate every configuration and give each trial what the largest needs.
        model_memory_gb: what each trial is given otherwise, in GB.
        gpu_memory_buffer_gb: what is left alone on each device, in GB.
        max_workers: at most so many trials at once.
        threads: CPU threads for each trial; None divides the cores between the workers.
        epochs: replaces every configuration's number of epochs.
        seed: seed of the validation split, weights, batches and dropout.
        output: the study's folder; None makes one under ``results/``.
        device: "auto", "cpu" or "cuda".
        memory_estimation: how ``auto_memory`` estimates: "static", "traced", "measured" or "auto".
        calibration: correct estimates by what earlier trials needed, and keep what these need for later ones.
        expandable_segments: set PyTorch's allocator option of that name for the trials.
        dry_run: stop after the plan.
    """

    auto_memory: bool = False
    model_memory_gb: float = 1.5
    gpu_memory_buffer_gb: float = 2.0
    max_workers: int | None = None
    threads: int | None = None
    epochs: int | None = None
    seed: int = 0
    output: str | None = None
    device: DeviceChoice = "auto"
    memory_estimation: Method = "auto"
    calibration: bool = True
    expandable_segments: bool = False
    dry_run: bool = False

    def check(self) -> None:
        """Refuses what cannot be used, before anything is done.

        Raises:
            InputError: a number makes no sense, two options exclude each other, or ``output`` cannot be written.
        """
        if not self.model_memory_gb > 0:
            raise InputError(f"--model-memory-gb {self.model_memory_gb:g}: must be more than 0")
        if self.auto_memory and self.model_memory_gb != type(self).model_memory_gb:
            raise InputError("--auto-memory and --model-memory-gb were both given: leave one of them out")
        if self.memory_estimation != "auto" and not self.auto_memory:
            raise InputError(f"--memory-estimation {self.memory_estimation}: has no effect without --auto-memory")
        if not self.gpu_memory_buffer_gb >= 0:
            raise InputError(f"--gpu-memory-buffer-gb {self.gpu_memory_buffer_gb:g}: must be 0 or more")
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: must be 0 or more")
        for option in ("max_workers", "threads", "epochs"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise InputError(f"--{option.replace('_', '-')} {value}: must be at least 1")
        if self.output:
            _check_output(Path(self.output))


def _check_output(path: Path) -> None:
    """Refuses a folder that has files, or that cannot be made; makes nothing."""
    try:
        if path.is_dir() and any(path.iterdir()):
            raise InputError(f"--output {path}: the folder is not empty; give a new one")
    except OSError as error:
        raise InputError(f"--output {path}: cannot be read: {error.strerror}") from error
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise InputError(f"--output {path}: cannot be written: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--output {path}: cannot be written: no permission in {existing}")
