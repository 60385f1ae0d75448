"""Trials that fail on one node alone: that is the node's failure, not theirs."""

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

from tuner.decisions.events import DeviceLost
from tuner.decisions.state import State
from tuner.errors import joined
from tuner.trial import Outcome

ALIKE = 2  # attempts with the same error, but for numbers, after which a node is used no more
MOST = 4  # attempts that are a node's failure; later ones are their trials'
NUMBER = re.compile(r"\d+")


@dataclass
class NodeFailures:
    """What trials have done on each node of a cluster."""

    served: set[str] = field(default_factory=set)  # the ids of nodes on which a trial has reported metrics
    _errors: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def judge(self, outcome: Outcome, state: State) -> tuple[Outcome, list[DeviceLost]]:
        """The outcome, which does not count as the trial's if its node is to blame, and the devices that are lost.

        On such a node no trial has reported metrics, and on another one a trial has.
        """
        node = outcome.placement.device.node_id if outcome.placement else ""
        plain = outcome.status == "failed" and not outcome.lost
        if not (node and plain and self.served and node not in self.served) or state.plan is None:
            return outcome, []
        errors, alike = self._errors[node], NUMBER.sub("#", outcome.error)
        errors.append(alike)
        if len(errors) > MOST:
            return outcome, []
        error = joined(outcome.error, "its node may be to blame, as trials report on others")
        lost: list[DeviceLost] = []
        if errors.count(alike) >= ALIKE:
            devices = [one for one in state.plan.devices if one.node_id == node and one not in state.lost]
            lost = [DeviceLost(device, f"trials fail alike there alone: {outcome.error}") for device in devices]
        return replace(outcome, lost="node", error=error), lost
