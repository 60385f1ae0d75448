"""The built-in workloads by name."""

from tuner.workloads.base import Trainable

DEFAULT_WORKLOAD = "graphsage"
BUILT_IN = {
    "graphsage": "tuner.workloads.graphsage.workload:GraphSAGE",
    "gt-ssl": "tuner.workloads.gt_ssl.workload:GTSSL",
    "kd-gat": "tuner.workloads.kd_gat.workload:KDGAT",
}


def is_built_in(workload: Trainable) -> bool:
    """Whether it is a built-in workload, not the user's."""
    return workload.name in BUILT_IN
