"""Large tensors are sent to other processes once, and changed there without harm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from tuner.execution.mapped_arrays import pack, unpack
from tuner.execution.shared_tensors import Files, close_shared, is_shareable, receive, share

OTHER = """
import sys
from tuner.execution.mapped_arrays import unpack
for _ in range(2):
    data = unpack(int(sys.argv[1]))
    large, small = data["large"], data["small"]
    assert large.sum() == 2**20 and small.tolist() == [[True, False]] and large.shape == (2, 2**19)
    large.mul_(3)
    print(float(large[0, 0]), data["half"].dtype)
"""


@pytest.fixture
def files() -> Iterator[Files]:
    """Is emptied at the end."""
    opened: Files = []
    yield opened
    close_shared(opened)


def test_another_process_maps_a_tensor_and_may_change_its_own_copy(files: Files) -> None:
    data = {
        "large": torch.ones(2, 2**19),
        "small": torch.tensor([[True, False]]),
        "half": torch.ones(2**20).bfloat16(),
    }
    with pack(data, files) as file:
        command = [sys.executable, "-c", OTHER, str(file.fileno())]
        ran = subprocess.run(command, pass_fds=[file.fileno()], capture_output=True, text=True, check=True)
        assert ran.stdout == "3.0 torch.bfloat16\n" * 2
        assert data["large"].sum() == 2**20
        assert file.seek(0, 2) < 10_000, "the content is not in what is sent"


def test_a_tensor_comes_back_as_it_was(files: Files) -> None:
    for tensor in (torch.arange(2**19).reshape(2, -1).T, torch.tensor(3.5), torch.ones(3, dtype=torch.complex64)):
        assert torch.equal(receive(share(tensor, files)), tensor)
        assert receive(share(tensor, files)).dtype == tensor.dtype


def test_only_plain_tensors_are_shared(files: Files) -> None:
    others = [torch.ones(1, requires_grad=True), torch.nn.Parameter(torch.ones(1)), torch.ones(0), "text"]
    assert not any(map(is_shareable, [*others, torch.ones(2, 2).to_sparse()]))
    with pack({"others": others}, files) as file:
        back = unpack(file.fileno())["others"]
    assert back[0].requires_grad and isinstance(back[1], torch.nn.Parameter) and back[3] == "text"
