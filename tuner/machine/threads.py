"""The number of threads of CPU operations."""

from __future__ import annotations

import os
import sys

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def thread_variables(threads: int) -> dict[str, str]:
    """Environment variables from which libraries take their number of threads as they are imported."""
    return dict.fromkeys(VARIABLES, str(threads))


def limit_threads(threads: int) -> None:
    """Limits the threads of CPU operations, also of libraries that are imported later."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    os.environ.update(thread_variables(threads))
