"""Whether this process runs on the emulated CUDA card of tests/emulated_cuda."""

from __future__ import annotations

import os
from pathlib import Path


def missing() -> str:
    """Why tests that need the emulated card cannot run in this process; empty if they can."""
    folder = os.environ.get("EMULATED_GPU")  # env.sh of the build sets it
    if not folder:
        return "not on the emulated card: scripts/test_emulated builds it and runs these tests"
    import torch

    if not Path(torch.__file__).is_relative_to(Path(folder).resolve()):
        return f"EMULATED_GPU={folder}, but torch is that of {Path(torch.__file__).parent}"
    return "" if torch.cuda.is_available() else f"EMULATED_GPU={folder}, but torch sees no card"
