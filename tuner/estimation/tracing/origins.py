"""Where an allocation of a traced step comes from: the operator, and the calls that led to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tuner.estimation.tracing.corrections.temporaries import Operator
    from tuner.estimation.tracing.trace import Origin

MOST = 12  # of the innermost calls
OUTERMOST = ("trace_workload", "trace_step")  # what called these is no part of the step
_TORCH = Path(torch.__file__).parent
# The layers' own methods are shown, such as ``Linear.forward``; what calls them is not.
_SHOWN, _HIDDEN = f"{_TORCH / 'nn' / 'modules'}/", (f"{_TORCH}/", f"{Path(__file__).parent}/", "<")
_CALLERS = str(_TORCH / "nn" / "modules" / "module.py")


def origin(running: Sequence[Operator]) -> Origin:
    """The innermost running operator, if there is one, and the calls that led to it, without those within torch.

    Local variables are not read, as that would keep tensors alive.
    """
    found: list[tuple[str, int, str]] = []
    if running:
        backward = " (backward)" if torch._C._current_graph_task_id() >= 0 else ""
        found.append(("operator", 0, f"{running[-1]}{backward}"))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in OUTERMOST and len(found) < MOST:
        file = frame.f_code.co_filename
        if (file.startswith(_SHOWN) and file != _CALLERS) or not file.startswith(_HIDDEN):
            found.append((file, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return tuple(found)
