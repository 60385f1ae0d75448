"""A workload whose trials get stuck, each in another way; workers import it as ``tests.support.stuck``."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader, Dataset

from tests.support.toy import Toy
from tuner.hyperparameters import Hyperparameter
from tuner.trial import Config
from tuner.workloads.base import Batch, Split

FOREVER = 1000


class Hangs(Dataset[Any]):
    """A data set whose sample never comes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        time.sleep(FOREVER)


class Stuck(Toy):
    """A toy that hangs in ``batches``, a data loader's child, or ``evaluate``."""

    name: ClassVar[str] = "stuck"
    hangs: ClassVar[tuple[str, ...]] = ("", "batches", "loader", "evaluate")
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        **Toy.hyperparameters,
        "hang": Hyperparameter(0, 0, len(hangs) - 1, ""),
    }

    def build_model(self, config: Config, data: Any) -> Any:
        model = super().build_model(config, data)
        model.register_buffer("hang", torch.tensor(config["hang"]))
        return model

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        kind = self.hangs[int(config["hang"])]
        if kind == "batches":
            time.sleep(FOREVER)
        if kind == "loader":
            yield next(iter(DataLoader(Hangs(), num_workers=1)))
        yield from super().batches(config, data)

    def evaluate(self, model: Any, data: Any, split: Split) -> dict[str, float]:
        if self.hangs[int(model.get_buffer("hang"))] == "evaluate":
            time.sleep(FOREVER)
        return super().evaluate(model, data, split)


def hangs_in_a_c_function(config: dict[str, Any]) -> None:
    """Reports once, starts a program in a session of its own, and hangs as in a kernel that never ends.

    Signals wait for the C function, and so do Python's other threads.
    """
    import tuner

    tuner.report(loss=1.0)
    other = subprocess.Popen(["sleep", str(FOREVER)], start_new_session=True)
    Path(config["folder"], str(other.pid)).touch()
    ctypes.PyDLL(None).sleep(FOREVER)
