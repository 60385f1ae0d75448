"""What a trial trains. Built-in workloads by name; none is imported before it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tuner.errors import InputError

if TYPE_CHECKING:
    from tuner.workloads.base import Workload

DEFAULT_WORKLOAD = "graphsage"
BUILT_IN = {
    "graphsage": "tuner.workloads.graphsage:GraphSAGE",
    "gt-ssl": "tuner.workloads.gt_ssl:GTSSL",
    "kd-gat": "tuner.workloads.kd_gat:KDGAT",
}


def find_workload(name: str) -> Workload:
    """The built-in workload of this name.

    Raises:
        InputError: there is none.
    """
    if name not in BUILT_IN:
        raise InputError(f"unknown workload {name!r}: choose one of {', '.join(BUILT_IN)}")
    module, _, attribute = BUILT_IN[name].partition(":")
    workload: Workload = getattr(importlib.import_module(module), attribute)()
    return workload
