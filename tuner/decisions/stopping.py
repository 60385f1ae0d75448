"""Decides that a study ends before its trials have: they fail alike, the target is reached, or nothing improves."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.decisions.events import Concluded, Decision, Ended, Event, Reported, Stopping
from tuner.decisions.state import State
from tuner.objective import Objective

NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")  # which may differ between errors that are alike


@dataclass(frozen=True)
class EndLimits:
    """When a study has seen enough."""

    fail_fast: int = 0  # ends it if this number of first trials fail alike; 0 never does
    patience: int | None = None  # after this number of trials without a better one
    target: float | None = None  # once a trial has this value or a better one


class StudyStopping:
    """Ends a study that has seen enough. Trials of several workloads are looked at together."""

    def __init__(self, objectives: Mapping[str, Objective], limits: EndLimits) -> None:
        """Begins with no trials."""
        self._objectives = objectives
        self._limits = limits
        self._why = ""
        # The errors of the first trials, without numbers; None once a trial has not failed.
        self._alike: list[str] | None = []
        self._nodes: set[str] = set()  # the ids of those on which they ran
        self._served = False  # whether a trial has reported the metric
        self._fronts: dict[str, list[tuple[float, ...]]] = {}  # of each workload's trials, as losses
        self._since = 0  # trials since the best one

    def hear(self, state: State, event: Event) -> None:
        """Looks at how trials end."""
        if isinstance(event, Reported) and event.report.metrics:
            self._served = True
        elif isinstance(event, Ended) and event.outcome and event.outcome.hopeless and self._limits.fail_fast:
            if not self._served:
                self._why = f"no trial can succeed: {event.outcome.error}"
        elif isinstance(event, Concluded) and event.ended.trial.attempt:  # else it was dropped, and never ran
            self._failing(state, event.ended)
            self._improving(event.ended)

    def decide(self, state: State, now: float) -> Decision | None:
        """The end of the study."""
        why, patience = self._why, self._limits.patience
        if not why and patience and self._since >= patience:
            why = f"the best has not improved in {self._since} trials"
        return Stopping(why) if why and not state.stopping else None

    def _failing(self, state: State, ended: Ended) -> None:
        if ended.result.status != "failed" or ended.result.lost:
            self._alike = None
        if self._alike is None or ended.outcome is None:  # of an earlier process
            return
        self._nodes |= {ended.outcome.placement.device.node_id} if ended.outcome.placement else set()
        self._alike.append(NUMBER.sub("#", ended.outcome.error))
        count = len(self._alike)
        if len(set(self._alike)) > 1:
            self._alike = None
        elif (most := self._limits.fail_fast) and count >= most and not self._elsewhere(state):
            self._why = f"the first {count} trials have failed alike: {ended.outcome.error}"

    def _elsewhere(self, state: State) -> bool:
        """Whether trials run on other nodes than those that have failed: it may be the node that fails."""
        return any(run.placement.device.node_id not in self._nodes for run in state.running.values())

    def _improving(self, ended: Ended) -> None:
        objective, target = self._objectives[ended.trial.workload], self._limits.target
        values = [ended.metrics.get(one.metric) for one in objective.all]
        finite = [value for value in values if value is not None and math.isfinite(value)]
        front = self._fronts.setdefault(ended.trial.workload, [])
        self._since += any(self._fronts.values())
        if ended.result.status != "completed" or len(finite) < len(values):
            return
        losses = tuple(one.loss(value) for one, value in zip(objective.all, finite, strict=True))
        if not any(_covers(best, losses) for best in front):
            front[:] = [best for best in front if not _covers(losses, best)] + [losses]
            self._since = 0
        if target is not None and not objective.better(target, finite[0]):
            self._why = f"{objective.metric} is {finite[0]:.6g}, and the target was {target:g}"


def _covers(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether one is at least as good as the other in everything."""
    return all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
