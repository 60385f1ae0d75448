"""Which devices of a cluster a study asks for, and which it gives back: unused ones, and those that others lack."""

from collections.abc import Callable, Mapping

from tuner.decisions.events import Contended, Decision, Event, Released, Wanted
from tuner.decisions.packer import Packer
from tuner.decisions.state import State
from tuner.trial import Device

IDLE_SECONDS = 10.0
DONE_SECONDS = 1.0  # if nothing waits, nor follows
SHARE_SECONDS = 10.0  # between two devices that others get, as the first is counted as theirs only once they have it


class Claims:
    """Wants each device that trials wait for, and gives it back when it has been unused for some seconds.

    To others that wait and hold fewer devices it gives one after another, once the trials there have ended.
    Those of this machine alone are the study's from its beginning to its end.
    """

    def __init__(self, packer: Packer, more: Callable[[], int] = lambda: 0) -> None:
        """Asks the accounts of ``packer``. A search may suggest as many ``more`` trials."""
        self._packer, self._more = packer, more
        self._idle_since: dict[Device, float] = {}
        self._contended: Mapping[Device, int] = {}
        self._shared_at = -SHARE_SECONDS

    def hear(self, state: State, event: Event) -> None:
        """Others wait for devices."""
        if isinstance(event, Contended):
            self._contended = event.devices

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
                given = device in self._contended or self._packer.runs_on(device)
                if not given and self._packer.is_short_of(device, state.wanted, more):
                    return Wanted(device)
            elif device in state.wanted:
                if not (state.waiting or more):
                    return Released(device)
            elif self._packer.uses(device):
                self._idle_since.pop(device, None)
            elif now - self._idle_since.setdefault(device, now) >= most:
                del self._idle_since[device]
                return Released(device)
        return self._share(state, now)

    def _share(self, state: State, now: float) -> Decision | None:
        """The device to give to others that wait and have fewer. Ranks keep theirs."""
        if not self._contended or now < self._shared_at + SHARE_SECONDS or self._packer.groups or state.plan is None:
            return None
        left = [device for device in state.plan.devices if device.node_id and device not in state.lost]
        held = [device for device in left if device not in state.released | state.wanted]
        leaving = sum(device in state.released and self._packer.runs_on(device) for device in left)
        for device in reversed(held):
            if len(held) >= 2 + leaving + self._contended.get(device, len(held)):
                self._shared_at = now
                return Released(device)
        return None
