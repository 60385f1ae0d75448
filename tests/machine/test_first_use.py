from __future__ import annotations

import sys
from functools import partial, wraps
from typing import Any

import pytest
import torch

from tests.support.worker_process import worker
from tuner.machine.first_use import load_early
from tuner.machine.peak import data_bytes
from tuner.training.rehearsal import warm_up
from tuner.trial import MB


def helper() -> None:
    import wave  # noqa: F401


def train(config: Any) -> None:
    helper()
    if config["epochs"] > 99:
        from xml import sax  # noqa: F401

    def step() -> None:
        import colorsys  # noqa: F401

        import no_such_module  # noqa: F401


class Trained:
    def step(self) -> None:
        train({})


@wraps(train)
def decorated(*args: Any) -> None:
    train(*args)


@pytest.mark.parametrize("trained", [train, Trained, decorated, partial(train, {}), lambda config: train(config)])
def test_what_a_function_imports_anywhere_is_imported_early(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("wave", "xml.sax", "colorsys")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr("xml.sax", raising=False)
    load_early(trained)
    assert set(names) <= set(sys.modules)


def grown_by_first_use() -> tuple[set[str], int]:
    """The modules and bytes that usual code adds after ``load_early``."""
    warm_up("cpu", 1)
    load_early(use_libraries)
    modules, before = set(sys.modules), data_bytes()
    use_libraries()
    after = data_bytes()
    assert before is not None and after is not None
    return set(sys.modules) - modules, after - before


def use_libraries() -> None:
    import numpy
    import pandas
    import scipy.linalg

    model = torch.nn.Linear(8, 1)
    for kind in (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop):
        optimizer = kind(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        schedule.step()
    square = numpy.ones((64, 64))
    scipy.linalg.blas.dgemm(1.0, square @ square, square)
    pandas.DataFrame({"key": ["a"], "value": [1]}).groupby("key").mean()


def test_afterwards_the_first_use_of_a_library_imports_nothing_and_takes_little() -> None:
    with worker() as call:
        modules, grown = call(grown_by_first_use)
    assert modules == set()
    assert grown < 8 * MB
