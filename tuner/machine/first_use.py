"""Has libraries load and reserve memory before a trial's cap, which they would otherwise do under it.

Without memory, an import raises ``SystemError``, crashes, or hangs as OpenBLAS asks for its buffer again and again.
"""

import builtins
import dis
import getpass
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

COMPILED = "TORCHINDUCTOR_CACHE_DIR"  # torch._dynamo sets it as it is imported, and makes the folder


@contextmanager
def without_compiled_folder() -> Iterator[None]:
    """Removes the empty folder for compiled code that the import of ``torch._dynamo`` makes in ``/tmp``."""
    given = os.environ.get(COMPILED)
    try:
        yield
    finally:
        if given is None and COMPILED in os.environ:
            with suppress(OSError):  # it holds something
                os.rmdir(os.environ[COMPILED])


def remove_compiled_folder() -> None:
    """Removes that folder if it is empty. A worker that was ended during the import has left it."""
    with suppress(OSError, KeyError):  # it is not there, or holds something; or the user has no name
        os.rmdir(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")


def load_early(*trained: object) -> None:
    """Imports what these functions or classes import within their bodies, and uses the loaded libraries once.

    Only the bodies are read, so imports under a condition count as well. Exceptions are ignored: the trial will raise
    them again.
    """
    for function in _functions(list(trained)):
        for import_it in _imports(function):
            with suppress(Exception):
                import_it()
    uses = {"torch": _use_torch, "numpy": _use_numpy, "scipy": _use_scipy, "pandas": _use_pandas}
    for library, use in uses.items():
        if library in sys.modules:
            with suppress(Exception):
                use()


def _functions(items: list[object]) -> Iterator[FunctionType]:
    """The functions among these objects, the methods of classes, and what they use of the same module."""
    seen: set[int] = set()
    while items:
        item = items.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, type):
            items += [vars(kind)[name] for kind in item.__mro__[:-1] for name in vars(kind)]
        elif isinstance(item, partial):
            items.append(item.func)
        elif isinstance(item, (staticmethod, classmethod)):
            items.append(item.__func__)
        elif isinstance(item, FunctionType):
            yield item
            cells = [cell.cell_contents for cell in item.__closure__ or () if cell]
            globals_ = [item.__globals__.get(name) for code in _codes(item.__code__) for name in code.co_names]
            items += [one for one in cells if callable(one)]
            items += [one for one in globals_ if getattr(one, "__module__", None) == item.__module__]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _imports(function: FunctionType) -> Iterator[Callable[[], object]]:
    """The import statements within a function."""
    for code in _codes(function.__code__):
        instructions = list(dis.get_instructions(code))
        for level, names, last in zip(instructions, instructions[1:], instructions[2:], strict=False):
            if last.opname == "IMPORT_NAME":
                yield partial(
                    builtins.__import__, last.argval, function.__globals__, None, names.argval, level.argval
                )


def _use_torch() -> None:
    """An optimizer's step, which imports ``torch._dynamo`` (72 MB), and what saving and printing import."""
    import torch

    model = torch.nn.Linear(1, 1)
    with without_compiled_folder():
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    torch.load(file, weights_only=True)
    repr(model.weight)


def _use_numpy() -> None:
    """The buffer of its OpenBLAS (32 MB of address space)."""
    import numpy

    numpy.ones((2, 2)) @ numpy.ones((2, 2))


def _use_scipy() -> None:
    """The buffer of its own OpenBLAS (32 MB of address space)."""
    blas = sys.modules.get("scipy.linalg.blas")
    if blas is not None:
        blas.dgemm(1.0, [[1.0]], [[1.0]])


def _use_pandas() -> None:
    """The arena in which pyarrow keeps strings (1 GB of address space)."""
    import pandas

    frame = pandas.DataFrame({"key": ["a"], "value": [1]})
    repr(frame.groupby("key").mean())
