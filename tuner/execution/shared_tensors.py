"""Sends large tensors to this machine's workers once, as files in memory that every worker maps.

The mappings are private: a worker that changes a tensor changes its own copy of the pages.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch import Tensor

LEAST_BYTES = 2**20  # smaller tensors are sent by content
Files = list[int]  # descriptors of the files, open as long as receivers may start


@dataclass(frozen=True)
class SharedTensor:
    """A tensor's content: a file that this process holds open, or the bytes themselves."""

    dtype: str  # such as "float32"
    shape: tuple[int, ...]
    path: str = ""
    content: bytes = b""


def share(tensor: Tensor, files: Files) -> SharedTensor:
    """Describes a tensor, with its content in memory that workers of this machine can map.

    The file is added to ``files``.
    """
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if flat.nbytes < LEAST_BYTES or not hasattr(os, "memfd_create"):
        return SharedTensor(dtype, shape, content=flat.tobytes())
    descriptor = os.memfd_create("tuner")
    files.append(descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        flat.tofile(file)
    return SharedTensor(dtype, shape, path=f"/proc/{os.getpid()}/fd/{descriptor}")


def receive(shared: SharedTensor) -> Tensor:
    """The tensor in another process."""
    import torch

    dtype = getattr(torch, shared.dtype)
    if not shared.path:
        return torch.frombuffer(bytearray(shared.content), dtype=dtype).reshape(shared.shape)
    size = os.stat(shared.path).st_size // dtype.itemsize
    return torch.from_file(shared.path, shared=False, size=size, dtype=dtype).reshape(shared.shape)


def is_shareable(value: object) -> bool:
    """Whether a value is a plain, non-empty tensor in the CPU's memory."""
    torch: Any = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        return False
    tensor = cast("Tensor", value)
    plain = tensor.layout is torch.strided and not tensor.requires_grad and not tensor.is_quantized
    return plain and tensor.device.type == "cpu" and tensor.numel() > 0


def close_shared(files: Files) -> None:
    """Closes the files. Processes that map them keep them."""
    while files:
        os.close(files.pop())


def pack(tensor: Tensor, files: Files) -> object:
    """What Ray sends in the place of a tensor."""
    return share(tensor, files) if is_shareable(tensor) else cast("Any", tensor).__reduce_ex__(2)


def unpack(sent: object) -> Tensor:
    """The tensor in a worker of Ray's."""
    if isinstance(sent, SharedTensor):
        return receive(sent)
    make, arguments, *_ = cast("tuple[Any, ...]", sent)
    return cast("Tensor", make(*arguments))
