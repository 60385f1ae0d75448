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
    _elsewhere: set[str] = field(default_factory=set)  # errors on those nodes, which are the trials' own
    _errors: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def judge(self, outcome: Outcome, state: State) -> tuple[Outcome, list[DeviceLost]]:
        """The outcome, which does not count as the trial's if its node is to blame, and the devices that are lost.

        On such a node no trial has reported metrics, and on another one a trial has. A trial that fails there again
        says no more than it did.
        """
        node = outcome.placement.device.node_id if outcome.placement else ""
        plain = outcome.status == "failed" and not outcome.lost
        alike, errors = NUMBER.sub("#", outcome.error), self._errors[node]
        if plain and node in self.served:
            self._elsewhere.add(alike)
        if not (node and plain and self.served) or {node, alike} & (self.served | self._elsewhere):
            return outcome, []
        errors.append((alike, outcome.trial.trial_id))
        if len(errors) > MOST:
            return outcome, []
        error = joined(outcome.error, "its node may be to blame, as trials report on others")
        lost: list[DeviceLost] = []
        if state.plan and len({trial for text, trial in errors if text == alike}) >= ALIKE:
            devices = [one for one in state.plan.devices if one.node_id == node and one not in state.lost]
            lost = [DeviceLost(device, f"trials fail alike there alone: {outcome.error}") for device in devices]
        return replace(outcome, lost="node", error=error), lost
