"""Which devices of a cluster a study asks for, and which it gives back, as nobody can tell it that others wait."""

from collections.abc import Callable

from tuner.decisions.events import Decision, Event, Released, Wanted
from tuner.decisions.packer import Packer
from tuner.decisions.state import State
from tuner.trial import Device

IDLE_SECONDS = 10.0
DONE_SECONDS = 1.0  # if nothing waits, nor follows


class Claims:
    """Wants each device that trials wait for, and gives it back when it has been unused for some seconds.

    Those of this machine alone are the study's from its beginning to its end.
    """

    def __init__(self, packer: Packer, more: Callable[[], int] = lambda: 0) -> None:
        """Asks the accounts of ``packer``. A search may suggest as many ``more`` trials."""
        self._packer, self._more = packer, more
        self._idle_since: dict[Device, float] = {}

    def hear(self, state: State, event: Event) -> None:
        """Needs nothing but the state."""

    def decide(self, state: State, now: float) -> Decision | None:
        """The next device to want or to give back."""
        if state.plan is None or state.stopping:
            return None
        more = self._more() + len(state.paused)
        most = IDLE_SECONDS if state.waiting or state.delayed or more else DONE_SECONDS
        for device in state.plan.devices:
            if not device.node_id or device in state.lost:
                continue
            if device in state.released:
                if self._packer.is_short_of(device, state.wanted, more):
                    return Wanted(device)
            elif device in state.wanted:
                if not (state.waiting or more):
                    return Released(device)
            elif self._packer.uses(device):
                self._idle_since.pop(device, None)
            elif now - self._idle_since.setdefault(device, now) >= most:
                del self._idle_since[device]
                return Released(device)
        return None
