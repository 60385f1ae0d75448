"""The shared memory of this machine, in which the workers of data loaders keep their batches."""

from __future__ import annotations

import shutil
from pathlib import Path

from tuner.trial import GB

SHARED = Path("/dev/shm")
LITTLE_BYTES = GB  # a few workers' batches of large images; docker gives a container 64 MB
MORE_SHARED = "start the container with --shm-size=8g, or use num_workers=0"


def free_shared_bytes() -> int | None:
    """The free bytes of the shared memory; None where there is no such folder."""
    return shutil.disk_usage(SHARED).free if SHARED.is_dir() else None
