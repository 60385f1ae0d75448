"""What the trials of a workload are compared by: its own metric and direction, or those that the user asks for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from tuner.errors import InputError, MissingMetric, ParameterError, WorkloadError, option
from tuner.objective import DIRECTIONS, Direction, Objective
from tuner.trial import FRONT, KNOWN
from tuner.workloads.base import Trainable, Workload
from tuner.workloads.session import is_metric_name

# Metrics with such a word in their names are maximised almost always, so whoever minimises one must say so.
SCORES = frozenset(
    [
        *("accuracy", "acc", "auc", "auroc", "f1", "precision", "recall", "r2", "map", "ndcg", "iou", "dice"),
        *("bleu", "rouge", "score", "reward", "mcc", "kappa", "spearman", "pearson"),
    ]
)


def is_score(metric: str) -> bool:
    """Whether a metric's name has a word of ``SCORES``: ``val_accuracy``, ``val_Recall@10``, ``val_macro_f1``."""
    words = re.sub(r"@[^_]*", "", metric.lower().removeprefix("val_")).split("_")
    return not SCORES.isdisjoint(words)


def objective_of(workload: Trainable, metrics: Sequence[str] = (), directions: Sequence[Direction] = ()) -> Objective:
    """What the trials of a workload are compared by; by default its own objective.

    The workload's direction applies to its own metric only. Figures that are known before trials run, such as
    ``parameters``, can follow a metric that they report.

    Raises ``InputError`` if there is no metric, the workload does not have it, or its direction is not given.
    """
    if directions and len(directions) != max(1, len(metrics)):
        rule = f"it is given {len(directions)} times, and there are {len(metrics) or 1} metrics"
        raise ParameterError("direction", " ".join(directions), rule, "give one for each, in their order")
    if metrics and metrics[0] in KNOWN:
        rule = "is known before a trial runs"
        raise ParameterError("metric", metrics[0], rule, "give a metric that trials report before it")
    if repeated := [name for place, name in enumerate(metrics) if name in metrics[:place]]:
        raise ParameterError("metric", repeated[0], "is given twice")
    names: Sequence[str | None] = metrics or (None,)
    first, *others = (_one(workload, *pair) for pair in zip_longest(names, directions))
    return replace(first, others=tuple(others))


def check_reported(objective: Objective, metrics: Mapping[str, float], who: str) -> None:
    """Raises ``MissingMetric`` if one of several objectives is not among a trial's metrics.

    Raises ``WorkloadError`` if a metric has the name of the column with their fronts.
    """
    if objective.others and FRONT in metrics:
        raise WorkloadError(f"{who} reported {FRONT!r}, which is the column of fronts: choose another name")
    for other in objective.others:
        if other.metric not in metrics and other.metric not in KNOWN:
            raise MissingMetric(f"{who} reported {', '.join(metrics)}, but not {other.metric!r}")


def _one(workload: Trainable, metric: str | None, direction: Direction | None) -> Objective:
    if metric in KNOWN:
        return Objective(metric, direction or "minimize")
    its = getattr(workload, "metric", None)
    is_workloads, name = metric in (None, its), its if metric is None else metric
    if not name:
        which = f"give {option('metric')}, the reported metric that trials are compared by"
        more = f", and {option('direction')}, whether more or less of it is better" if direction is None else ""
        raise InputError(f"{workload.name}: {which}{more}")
    if not is_metric_name(name):
        raise ParameterError("metric", name, "results have a column of this name", f"call it {name}_value, say")
    if isinstance(workload, Workload) and not re.fullmatch("val_.+", name):
        rule = f"expected 'val_' and a metric's name from evaluate of workload {workload.name}, such as 'val_loss'"
        raise ParameterError("metric", name, rule)
    if is_workloads and direction is None and workload.direction is not None:
        direction = DIRECTIONS[workload.direction]
    if direction is None and (is_score(name) or not isinstance(workload, Workload)):
        of_class = is_workloads and isinstance(workload, Workload)
        in_class = ", or write direction = 'maximize' in its class" if of_class else ""
        raise InputError(
            f"{workload.name}: is more of {name!r} better, or less? Give {option('direction', 'maximize')} or "
            f"{option('direction', 'minimize')}{in_class}"
        )
    return Objective(name, direction or "minimize")
