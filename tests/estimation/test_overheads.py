"""What a worker takes for its imports, before anything is measured."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.support.toy import Toy
from tuner.estimation.overheads import COMPILER_BYTES, PYG_BYTES, import_bytes
from tuner.workloads.lookup import find_workload


def test_workloads_of_pyg_take_what_pyg_imports_and_that_has_the_compiler() -> None:
    graphsage = type(find_workload("graphsage"))
    assert import_bytes(graphsage) == import_bytes(graphsage, compiler=True) == PYG_BYTES


def test_a_module_that_names_pyg_counts_as_one_that_imports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("graphs_of_a_user")
    module.conv = ModuleType("torch_geometric.nn")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    workload = type("Graphs", (Toy,), {"__module__": module.__name__})
    assert import_bytes(workload) == PYG_BYTES


def test_a_workload_of_torch_alone_takes_the_compiler_where_it_needs_it() -> None:
    plain = type("Plain", (Toy,), {"__module__": "nowhere"})
    assert (import_bytes(plain), import_bytes(plain, compiler=True)) == (0, COMPILER_BYTES)


def test_the_compiler_is_counted_once_where_a_module_imports_pyg_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("graphs_and_more")
    module.conv, module.frames = ModuleType("torch_geometric.nn"), ModuleType("pandas")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("tuner.estimation.overheads._measured", lambda *_: 7 * PYG_BYTES)
    workload = type("Graphs", (Toy,), {"__module__": module.__name__})
    assert import_bytes(workload, compiler=True) == import_bytes(workload) == 7 * PYG_BYTES
