"""What of each device is given to trials, and kept for ranks."""

import math
from dataclasses import dataclass, field

from tuner.trial import Device, Placement, Request, Trial

Rank = tuple[str, int]  # a trial's id and the number of its rank


@dataclass
class Reservation:
    """The room of a device that is kept for ranks of a trial, until there is room for all of them.

    That is a reservation with backfilling, as in EASY (D. Lifka, The ANL/IBM SP Scheduling System, 1995): another
    trial may start there if it is expected to end before, or leaves the room. A trial of unknown seconds must leave
    it.
    """

    trial_id: str
    until: float  # when its ranks are expected to start, by the study's clock; infinite if that is unknown
    size: int  # the room in bytes
    spare: int  # what those may take that end later
    slots: int
    others: dict[Rank, int]  # their bytes


@dataclass(eq=False)
class Account:
    """A device of a plan, and what of it is given to trials."""

    index: int  # in the plan
    device: Device
    budget: int  # the bytes that trials divide
    free: int
    slots: int  # those that are free; below 0 where fewer are allowed than trials run
    allowed: int  # how many trials may run at once
    bound: float = math.inf  # what may be reserved until others' memory is looked at again
    lost: bool = False
    reservation: Reservation | None = None
    full: bool = False  # no trial fits now that would end before kept room is needed
    running: dict[Rank, tuple[float, int]] = field(default_factory=dict)  # when they are expected to end; bytes

    @property
    def within_bounds(self) -> int:
        """The free bytes within the bound."""
        return int(min(self.free, self.bound))

    @property
    def room(self) -> int:
        """The bytes that can be reserved now: free, within the bound, and not kept for ranks."""
        return min(self.within_bounds, self.reservation.spare) if self.reservation else self.within_bounds

    @property
    def open_slots(self) -> int:
        """How many trials can start, if they fit; none if it is below 1."""
        if self.lost:
            return 0
        return min(self.slots, self.reservation.slots) if self.reservation else self.slots

    def ranks_of(self, trial: Trial) -> int:
        """How many ranks of a trial it takes: a GPU one, the CPU all of a node."""
        return trial.shape.ranks_per_node if self.device.kind == "cpu" else 1

    def takes(self, place: Placement, now: float) -> None:
        """A rank starts, at this time of the study's clock."""
        seconds = Request(place.trial, place.estimate, 0).seconds
        rank, end = (place.trial.trial_id, place.rank), math.inf if seconds is None else now + seconds
        if (reservation := self.reservation) and end >= reservation.until:
            reservation.others[rank] = place.limit_bytes
            reservation.spare -= place.limit_bytes
            reservation.slots -= 1
        self.running[rank] = end, place.limit_bytes
        self.free -= place.limit_bytes
        self.bound -= place.limit_bytes
        self.slots -= 1

    def gives_back(self, place: Placement) -> None:
        """A rank has ended. That raises no bound."""
        rank = place.trial.trial_id, place.rank
        if (reservation := self.reservation) and (size := reservation.others.pop(rank, 0)):
            reservation.spare += size
            reservation.slots += 1
        del self.running[rank]
        self.free += place.limit_bytes
        self.slots += 1

    def room_at(self, need: int, slots: int) -> float | None:
        """When so many bytes and slots are expected to be free: -inf if they are, inf if unknown, None if never."""
        when, free, free_slots = -math.inf, self.free, self.slots
        for end, size in sorted(self.running.values()):
            if free >= need and free_slots >= slots:
                break
            when, free, free_slots = end, free + size, free_slots + 1
        return when if free >= need and free_slots >= slots else None

    def keep(self, trial: Trial, need: int, until: float) -> None:
        """Keeps room for ranks of a trial, of so many bytes each."""
        number, later = (
            self.ranks_of(trial),
            {rank: size for rank, (end, size) in self.running.items() if end > until},
        )
        spare, slots = self.budget - need * number - sum(later.values()), self.allowed - number - len(later)
        self.reservation = Reservation(trial.trial_id, until, need * number, spare, slots, later)
