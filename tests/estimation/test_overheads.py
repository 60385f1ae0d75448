"""What a worker takes for its imports, before anything is measured."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from tests.support.toy import Toy
from tuner.estimation.estimators import with_contexts
from tuner.estimation.overheads import (
    COMPILER_BYTES,
    CONTEXT_BYTES,
    context_of,
    import_bytes,
    measured_context,
    program_bytes,
)
from tuner.trial import MB, Device
from tuner.workloads.lookup import find_workload
from tuner.workloads.program import Function


def test_workloads_of_pyg_take_nothing_for_it_as_trials_share_it_and_it_has_the_compiler() -> None:
    graphsage = type(find_workload("graphsage"))
    assert import_bytes(graphsage) == import_bytes(graphsage, compiler=True) == 0


def test_a_module_that_names_pyg_counts_as_one_that_imports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("graphs_of_a_user")
    module.conv = ModuleType("torch_geometric.nn")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    workload = type("Graphs", (Toy,), {"__module__": module.__name__})
    assert import_bytes(workload, compiler=True) == 0


def test_a_workload_of_torch_alone_takes_the_compiler_where_it_needs_it() -> None:
    plain = type("Plain", (Toy,), {"__module__": "nowhere"})
    assert (import_bytes(plain), import_bytes(plain, compiler=True)) == (0, COMPILER_BYTES)


def test_the_compiler_is_counted_once_where_a_module_imports_pyg_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("graphs_and_more")
    module.conv, module.frames = ModuleType("torch_geometric.nn"), ModuleType("pandas")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("tuner.estimation.overheads._measured", lambda *_: 7 * MB)
    workload = type("Graphs", (Toy,), {"__module__": module.__name__})
    assert import_bytes(workload, compiler=True) == import_bytes(workload) == 7 * MB


def test_what_a_function_imports_is_measured_once_also_where_each_study_wraps_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[object] = []
    monkeypatch.setattr("tuner.estimation.overheads._GROWTHS", {})
    monkeypatch.setattr("tuner.estimation.measure.run_in_new_process", lambda *a: measured.append(a) or MB)
    assert [program_bytes(Function(train)) for train in (print_config, print_config, len)] == [MB] * 3
    assert len(measured) == 2


def print_config(config: object) -> None:
    print(config)


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A GPU of this machine, of a model and a UUID that no other test has."""
    monkeypatch.setattr("tuner.estimation.overheads.driver_version", lambda: "580")
    name = request.node.name
    return Device("", "cuda", 0, name, 0, 0, 0, uuid=name)


def test_a_gpus_context_is_measured_once_and_kept(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    measured = lambda _function, _content, device: asked.append(device.uuid) or (742 * MB, True)  # noqa: E731
    monkeypatch.setattr("tuner.estimation.measure.run_in_new_process", measured)
    assert context_of(gpu) == context_of(replace(gpu, uuid="another of this model")) == (742 * MB, "")
    assert asked == [gpu.uuid]


def test_a_gpu_that_is_not_on_this_machine_is_assumed_to_take_what_others_do(gpu: Device) -> None:
    assert context_of(replace(gpu, uuid="")) == context_of(replace(gpu, node_id="n")) == (CONTEXT_BYTES["cuda"], "")


def test_a_node_tells_the_contexts_of_its_gpus(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.estimation.measure.run_in_new_process", lambda *_: (742 * MB, True))
    monkeypatch.setattr("tuner.machine.devices.detect", lambda _: (gpu,))
    (told,) = with_contexts()("cuda")
    elsewhere = replace(told, uuid="", node_id="n")
    assert context_of(elsewhere) == (742 * MB, "") and measured_context(elsewhere) == 742 * MB


def test_a_context_that_cannot_be_measured_is_assumed_and_the_estimate_says_so(
    gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr("tuner.estimation.measure.run_in_new_process", fails)
    context, why = context_of(gpu)
    assert (context, why[-25:]) == (CONTEXT_BYTES["cuda"], "CUDA error: out of memory")
