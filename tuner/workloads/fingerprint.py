"""A digest of a data set, by which a study and its estimates know it again."""

import hashlib
import io
import pickle
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import InputError, one_line


def fingerprint(data: object) -> str:
    """A digest of a data set: equal data have equal digests.

    The data are pickled, as on their way to the workers, and nothing is unpickled. An array counts by its type, shape
    and values, whatever its memory layout.
    """
    try:
        try:
            pickled = _pickled(data, fast=True)
        except ValueError:  # an object holds itself
            pickled = _pickled(data, fast=False)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(
            f"the data cannot go to workers, as they cannot be pickled ({one_line(error)}): give numpy "
            "arrays in tuples, lists, dicts or dataclasses"
        ) from error
    return hashlib.blake2b(pickled.getbuffer(), digest_size=16).hexdigest()


def _pickled(data: object, *, fast: bool) -> io.BytesIO:
    """Pickles data; ``fast`` uses no memo, so that it does not matter whether equal texts are one object."""
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=5)
    pickler.fast = fast
    pickler.dump(data)
    return file


class _Pickler(pickle.Pickler):
    """Pickles data with each array of numbers replaced by its digest, so that no second copy of the data is made."""

    def reducer_override(self, value: object) -> Any:
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Tensor) and value.layout is torch.strided:
            values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _digest(f"{value.dtype} {tuple(value.shape)}", values)
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            return NotImplemented
        return _digest(f"{value.dtype.str} {value.shape}", np.ascontiguousarray(value).reshape(-1).view(np.uint8))


def _digest(kind: str, values: NDArray[np.uint8]) -> tuple[type[str], tuple[str]]:
    return str, (f"{kind} {hashlib.blake2b(values.data, digest_size=16).hexdigest()}",)
