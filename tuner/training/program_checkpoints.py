"""The checkpoints that a trial's own program reports: state dicts, or folders of files.

    checkpoints/t003/4/progress.json   how far training was, and the best metrics so far
                      state.pt         a state dict; state.json without torch; files/ for a folder

The last checkpoint and the one of the best report are kept.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tuner.errors import WorkloadError, one_line
from tuner.machine.safe_files import regular
from tuner.trial import Trial
from tuner.values import encode, label
from tuner.workloads.session import TRIALS, State

PROGRESS, STATE, PLAIN_STATE, FILES = "progress.json", "state.pt", "state.json", "files"


@dataclass
class Progress:
    """How far a program has come."""

    epoch: int = 0  # of the last report
    offset: int = 0  # 1 for a program whose epochs begin at 0
    best: dict[str, float] = field(default_factory=dict)  # the metrics of the best report so far
    best_checkpoint: int | None = None  # the number of the checkpoint that came with it
    seconds: float = 0.0  # that training took up to here
    reports: list[tuple[int, Mapping[str, float]]] = field(
        default_factory=list
    )  # the last ``REPORTS``: epochs with their metrics


class ProgramCheckpoints:
    """One trial's folder. A fault of the disk never stops the trial; ``faults`` lists the last one.

    ``best_fault`` is why the best report's checkpoint was not written, also if later ones were. It is empty if it
    was, or if that report came with none.
    """

    def __init__(self, folder: Path | None, trial: Trial) -> None:
        """Nothing is kept without a folder, or if it does not exist on this machine."""
        self._path = folder / trial.trial_id if folder is not None else None
        self._available = folder is not None and folder.is_dir()
        self.trial_folder = (
            (folder.parent / TRIALS / trial.trial_id).absolute() if folder and self._available else None
        )
        self._of: dict[str, object] = {"config": encode(dict(trial.config)), "seed": trial.seed}
        # Earlier versions had labels of all but numbers and texts.
        labels = {key: value if type(value) in (int, float) else label(value) for key, value in trial.config.items()}
        self._of_earlier = {"config": labels, "seed": trial.seed}
        self._paused = folder / trial.pause if folder is not None else None
        self._parent = folder / trial.parent if folder is not None and trial.parent else None
        if trial.parent:
            self._of["parent"] = self._of_earlier["parent"] = trial.parent
        self.faults: tuple[str, ...] = ()
        self.best_fault = ""
        self._began, self.earlier_seconds = time.monotonic(), 0.0  # the latter of the training that it goes on with
        self._last = max(self._numbers(), default=0)

    def restore(self) -> Progress:
        """The progress at the last checkpoint. Without a usable one, training begins anew, or with the parent's."""
        progress = self._restored()
        if self._last or not (self._path and self._parent):
            return progress
        if not self._parent.is_dir():
            self.faults = (f"checkpoint {self._parent.name} is gone: training begins anew",)
            return progress
        shutil.copytree(self._parent, self._path, dirs_exist_ok=True)
        for number in self._numbers():
            about = self._path / str(number) / PROGRESS
            about.write_text(json.dumps({**json.loads(about.read_text()), "reports": [], "of": self._of}))
        self._last = max(self._numbers())
        return self._restored()

    @property
    def is_empty(self) -> bool:
        """Whether there is no checkpoint yet."""
        return not self._last

    def pause(self) -> None:
        """Keeps the last checkpoint for this trial or another one; raises ``WorkloadError`` if there is none."""
        if self.faults or not (self._last and self._path and self._paused):
            why = self.faults[0] if self.faults else "give tuner.report(…, checkpoint=…) a state dict or a folder"
            raise WorkloadError(f"a population takes over checkpoints, and this trial has none: {why}")
        shutil.rmtree(self._paused, ignore_errors=True)
        os.rename(self._path, self._paused)

    def _restored(self) -> Progress:
        if self._path is None or not self._last:
            return Progress()
        try:
            content = json.loads((self._path / str(self._last) / PROGRESS).read_text())
            if content.pop("of") in (self._of, self._of_earlier):
                best_fault = content.pop("best_fault", "")
                progress = Progress(**content)
                self.best_fault, self.earlier_seconds = best_fault, progress.seconds
                return progress
            fault = "it belongs to another training"
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            fault = f"it is damaged ({type(error).__name__})"
        self.faults = (f"checkpoint {self._path.name}/{self._last} not used: {fault}",)
        shutil.rmtree(self._path, ignore_errors=True)
        self._last = 0
        return Progress()

    def save(self, checkpoint: State, progress: Progress, *, is_best: bool) -> None:
        """Keeps a checkpoint under a new number, and drops those that are neither the last nor the best.

        Raises ``WorkloadError`` if it holds more than tensors and plain values, or it is not a folder.
        """
        content = _checked(checkpoint)
        if self._path is None:
            return
        if not self._available:
            self._missed(f"this machine has no folder {self._path.parent}", is_best=is_best)
            return
        number = self._last + 1
        kept = number if is_best else progress.best_checkpoint
        partial = self._path / f"{number}.partial"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _write(partial, content)
            progress.seconds = self.earlier_seconds + time.monotonic() - self._began
            about = {"best_checkpoint": kept, "best_fault": self.best_fault, "of": self._of}
            (partial / PROGRESS).write_text(json.dumps({**asdict(progress), **about}))
            os.rename(partial, self._path / str(number))
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError from OSError
            self._missed(one_line(error), is_best=is_best)
            shutil.rmtree(partial, ignore_errors=True)
            return
        self._last, self.faults, progress.best_checkpoint = number, (), kept
        for other in self._numbers():
            if other not in (number, progress.best_checkpoint):
                shutil.rmtree(self._path / str(other), ignore_errors=True)

    def last(self) -> State | None:
        """The last checkpoint: a state dict on the CPU, or a folder; None without one."""
        return self._read(self._last)

    def best(self, progress: Progress) -> State | None:
        """The checkpoint that came with the best report; None if it came with none."""
        return self._read(progress.best_checkpoint)

    def _missed(self, reason: str, *, is_best: bool) -> None:
        self.faults = (f"checkpoint not written: {reason}",)
        if is_best:
            self.best_fault = self.faults[0]

    def _read(self, number: int | None) -> State | None:
        if self._path is None or not number:
            return None
        folder = self._path / str(number)
        if (folder / STATE).exists():
            import torch

            state: Mapping[str, Any] = torch.load(regular(folder / STATE), map_location="cpu", weights_only=True)
            return state
        if (folder / PLAIN_STATE).exists():
            plain: Mapping[str, Any] = json.loads(regular(folder / PLAIN_STATE).read_text())
            return plain
        return folder / FILES if (folder / FILES).is_dir() else None

    def _numbers(self) -> list[int]:
        if self._path is None or not self._path.is_dir():
            return []
        return [int(path.name) for path in self._path.iterdir() if path.name.isdigit()]


def files_of(folder: Path) -> dict[str, object]:
    """A folder's files as tensors of bytes, by relative path, so that ``torch.save`` can store them with weights."""
    import torch

    return {
        str(file.relative_to(folder)): torch.frombuffer(bytearray(file.read_bytes() or b"\0"), dtype=torch.uint8)[
            : file.stat().st_size
        ]
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def _checked(checkpoint: object) -> State:
    if isinstance(checkpoint, (str, os.PathLike)):
        if not Path(checkpoint).is_dir():
            raise WorkloadError(
                f"tuner.report: checkpoint {str(checkpoint)!r} is not a folder: give a folder of files"
            )
        return Path(checkpoint)
    if not isinstance(checkpoint, Mapping):
        hint = "model.state_dict()" if hasattr(checkpoint, "state_dict") else "a state dict or a folder"
        raise WorkloadError(f"tuner.report: checkpoint is a {type(checkpoint).__name__}: give {hint}")
    if (other := _not_plain(checkpoint)) is not None:
        raise WorkloadError(
            f"tuner.report: checkpoint holds a {type(other).__name__}: give tensors and plain values, or write files "
            "into a folder and give that"
        )
    return checkpoint


def _not_plain(value: object) -> object | None:
    """The first nested value that a file of weights cannot hold safely; None if all can be held."""
    torch = sys.modules.get("torch")
    if isinstance(value, Mapping):
        return next((bad for part in (*value, *value.values()) if (bad := _not_plain(part)) is not None), None)
    if isinstance(value, (list, tuple)):
        return next((bad for part in value if (bad := _not_plain(part)) is not None), None)
    if value is None or type(value) in (bool, int, float, str, bytes) or (torch and isinstance(value, torch.Tensor)):
        return None
    return value


def _write(folder: Path, content: State) -> None:
    if isinstance(content, Path):
        shutil.copytree(content, folder / FILES)
    elif torch := sys.modules.get("torch"):
        with open(folder / STATE, "wb") as file:  # not a path: torch's own writer does not say that a disk is full
            torch.save(dict(content), file)
    else:
        (folder / PLAIN_STATE).write_text(json.dumps(dict(content)))
