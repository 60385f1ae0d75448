"""Arrays and tensors on their way to the workers; test_executors.py and test_cluster.py send some by Ray."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tuner.errors import DataError, InputError
from tuner.execution.mapped_arrays import _other_names, check_sendable, is_plain_tensor, loaded, pack, unpack
from tuner.execution.nodes import on_one_machine
from tuner.objective import Objective
from tuner.workloads.program import Function
from tuner.workloads.task import TrainingTask

OTHER = """
import sys
from tuner.execution.mapped_arrays import unpack
descriptor = int(sys.argv[1])
for _ in range(2):
    data = unpack(descriptor)
    large, small = data["large"], data["small"]
    assert large.sum() == 2**20 and small.tolist() == [[True, False]] and large.shape == (2, 2**19)
    large.mul_(3)
    print(float(large[0, 0]), data["half"].dtype, data["array"].flags.writeable)
"""


@pytest.fixture
def mapped(tmp_path: Path) -> np.memmap[Any, Any]:
    """An array of 2 MB over a file."""
    np.save(tmp_path / "a.npy", np.arange(250_000.0).reshape(500, 500))
    array: np.memmap[Any, Any] = np.load(tmp_path / "a.npy", mmap_mode="r")
    return array


def sent(array: np.memmap[Any, Any]) -> Any:
    """What a worker has of an array."""
    with pack(array) as file:
        return unpack(file.fileno())


def test_a_mapped_array_travels_as_its_place_in_a_file(
    mapped: np.memmap[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__file__ = __file__
    monkeypatch.setitem(sys.modules, "__main__", main)  # pytest has names there, which would travel, too
    with pack(mapped) as file:
        assert file.seek(0, 2) < 10_000
    again = sent(mapped)
    assert isinstance(again, np.memmap)
    assert (again.filename, again.flags.writeable) == (os.fspath(mapped.filename or ""), False)
    assert np.array_equal(again, mapped)


@pytest.mark.parametrize("array", [np.zeros((0, 3), np.int32), np.asfortranarray(np.arange(12).reshape(3, 4))])
def test_shape_type_and_order_are_kept(array: np.ndarray[Any, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    again = sent(np.load(tmp_path / "a.npy", mmap_mode="r"))
    assert isinstance(again, np.memmap)
    assert (again.shape, again.dtype, again.flags.f_contiguous) == (
        array.shape,
        array.dtype,
        array.flags.f_contiguous,
    )
    assert np.array_equal(again, array)


@pytest.mark.parametrize(
    "part",
    [lambda a: a[3:5], lambda a: a.T, lambda a: a[::-2, ::3], lambda a: a[:], lambda a: a.astype(np.float32)],
    ids=["slice", "transposed", "strided", "view", "computed"],
)
def test_what_is_not_a_whole_mapping_travels_by_content(
    part: Callable[[Any], Any], mapped: np.memmap[Any, Any]
) -> None:
    assert type(sent(part(mapped))) is np.ndarray
    assert np.array_equal(sent(part(mapped)), part(mapped))


def test_a_mapping_with_changes_of_its_own_travels_by_content(mapped: np.memmap[Any, Any]) -> None:
    changed = np.load(str(mapped.filename), mmap_mode="c")
    changed[0, 0] = 7
    assert sent(changed)[0, 0] == 7


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_file_that_is_not_the_same_any_more_is_told(change: str, mapped: np.memmap[Any, Any]) -> None:
    packed, path = pack(mapped), str(mapped.filename)
    os.unlink(path)
    if change == "replaced":
        np.save(path, np.zeros((500, 500)))
    with (
        packed,
        pytest.raises(DataError, match=r"a\.npy has been removed or replaced since .*: run it again, or resume it"),
    ):
        unpack(packed.fileno())
    if change == "removed":
        with pytest.raises(DataError, match=r"a\.npy has been removed or replaced"):
            pack(mapped)


def test_another_process_may_change_its_own_copy_of_a_tensor_and_no_array() -> None:
    data = {
        "large": torch.ones(2, 2**19),
        "small": torch.tensor([[True, False]]),
        "half": torch.ones(2**20).bfloat16(),
        "array": np.ones(3),
    }
    with pack(data) as file:
        command = [sys.executable, "-c", OTHER, str(file.fileno())]
        ran = subprocess.run(command, pass_fds=[file.fileno()], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("3.0 torch.bfloat16 False\n" * 2, "")
    assert data["large"].sum() == 2**20


def test_tensors_come_back_as_they_were() -> None:
    plain = [torch.arange(2**19).reshape(2, -1).T, torch.tensor(3.5), torch.ones(3, dtype=torch.complex64)]
    others = [torch.ones(1, requires_grad=True), torch.nn.Parameter(torch.ones(1)), torch.ones(0), "text"]
    assert [is_plain_tensor(value) for value in [*plain, *others]] == [True] * 3 + [False] * 4
    assert not is_plain_tensor(torch.eye(2).to_sparse())
    with pack([*plain, *others]) as file:
        back = unpack(file.fileno())
    assert all(torch.equal(new, old) and new.dtype == old.dtype for new, old in zip(back, plain, strict=False))
    assert back[3].requires_grad and isinstance(back[4], torch.nn.Parameter) and back[6] == "text"


def test_one_machine_is_one_address_and_one_name() -> None:
    nodes = [
        {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "one"},
        {"NodeID": "b", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "one"},
        {"NodeID": "c", "NodeManagerAddress": "10.0.0.2", "NodeManagerHostname": "two"},
        {"NodeID": "d", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "a container"},
    ]
    assert on_one_machine(nodes, {"a"})
    assert on_one_machine(nodes, {"a", "b"})
    assert not on_one_machine(nodes, {"a", "c"})
    assert not on_one_machine(nodes, {"a", "d"})


NAMES = """
import functools, multiprocessing, numpy
def first(): return second() + VALUE + LARGE
def second(): return first
REGISTRY = {"first": first}
class Cleans:
    def __del__(self): pass
class Cached:
    @functools.cached_property
    def value(self): return 3
VALUE, SMALL, LARGE = 3, numpy.ones(3), numpy.ones(2**20)
cleans, (pipe, _end), opened, registry = Cleans(), multiprocessing.Pipe(), open("/dev/null"), REGISTRY
"""


def test_names_that_no_trial_needs_come_alone_unless_they_belong_to_the_study(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(NAMES, vars(main))
    sent = _other_names({})
    main.opened.close()
    code = ["first", "second", "Cleans", "Cached"]
    assert list(sent) == [*code, "functools", "multiprocessing", "numpy", "REGISTRY", "VALUE", "SMALL", "registry"]
    assert max(map(len, sent.values())) < 2000, "each function without those that it calls"
    there = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", there)
    loaded([pickle.dumps((None, None, {})), pickle.dumps(sent)])
    assert there.REGISTRY["first"] is there.first and there.first.__globals__ is vars(there)
    assert there.Cached().value == 3 and there.second() is there.first


def test_what_cannot_be_sent_is_named_also_where_a_variable_has_no_value_yet() -> None:
    def train(config: dict[str, Any]) -> object:
        return later, held

    held = threading.Lock()
    with pytest.raises(InputError, match=r"^train cannot be sent to another process: .*lock"):
        check_sendable({"train": TrainingTask(Function(train), None, objective=Objective("loss"))})
    later = 1
