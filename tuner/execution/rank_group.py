"""The ranks of a running trial, whose fate is one."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tuner.errors import ExecutionError
from tuner.execution.executor import Weights
from tuner.trial import Outcome, Placement

# After a rank has failed, the others have this time to say what happened to them: the first that is heard may only
# have missed another one.
FAILED_SECONDS = 3.0
DONE_SECONDS = 10.0  # after rank 0 has completed the trial, for the others to end, too
ENDED_SECONDS = 1.0  # after it was pruned or interrupted, which the others do not know
EXCHANGE = ("gloo", "NCCL", "ProcessGroup")  # in errors of a rank that has missed another one
WELL = ("completed", "pruned", "paused", "interrupted")


def meeting_at(placement: Placement, address: str, port: int) -> Placement:
    """The placement with the address at which its ranks meet, and what each knows of the others."""

    def met(place: Placement) -> Placement:
        node = place.device.node_id
        gpus = [one.device.uuid for one in placement.all if one.rank != place.rank and one.device.node_id == node]
        return replace(place, address=address, port=port, beside=tuple(filter(None, gpus)))

    return replace(met(placement), others=tuple(map(met, placement.others)))


@dataclass
class RankGroup:
    """What has become of the ranks of a trial."""

    placement: Placement  # of rank 0, with those of the others
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # of those that have ended, by rank, in this order
    said: list[int] = field(default_factory=list)  # those that ended by themselves
    deadline: float | None = None  # until then the others may end by themselves; monotonic seconds
    weights: bytes | ExecutionError = b""  # those of rank 0
    clock: Callable[[], float] = time.monotonic

    def ended(self, outcome: Outcome, weights: Weights, *, by_itself: bool = True) -> None:
        """A rank has ended, or was ended because of another one."""
        assert outcome.placement is not None
        rank, well = outcome.placement.rank, outcome.status in WELL
        self.outcomes[rank] = outcome
        if not by_itself:
            return
        self.said.append(rank)
        if rank == 0 and outcome.status == "completed":  # now, as its worker may be gone when all have ended
            try:
                self.weights = weights()
            except ExecutionError as error:
                self.weights = error
        if self.deadline is None and (rank == 0 or not well):
            after = DONE_SECONDS if outcome.status == "completed" else ENDED_SECONDS if well else FAILED_SECONDS
            self.deadline = self.clock() + after

    @property
    def is_late(self) -> bool:
        """Whether the ranks that still run must be ended."""
        return self.deadline is not None and self.clock() >= self.deadline

    @property
    def has_ended(self) -> bool:
        """Whether all ranks have."""
        return len(self.outcomes) == len(self.placement.all)

    def outcome(self) -> tuple[Outcome, Weights]:
        """The trial's outcome: rank 0's if that ended well, else of the rank whose end explains those of the others.

        The peaks are the largest of all ranks.
        """
        first = self.outcomes[0]
        fallen = [rank for rank in self.said if self.outcomes[rank].status not in WELL]
        chosen = 0 if first.status in WELL and 0 in self.said else min(fallen, key=self._order, default=0)
        explaining = self.outcomes[chosen]
        peaks = tuple(self.outcomes[rank].peak_bytes for rank in sorted(self.outcomes))
        in_ram = [one.host_peak_bytes for one in self.outcomes.values() if one.host_peak_bytes is not None]
        error = explaining.error
        if explaining.status not in (*WELL, "stalled"):
            error = f"rank {chosen}: {error}{self._gone(explaining)}"
        merged = replace(
            explaining,
            placement=self.placement,
            peak_bytes=max(filter(None, peaks), default=None),
            rank_peaks=peaks,
            host_peak_bytes=max(in_ram, default=None),
            epochs=first.epochs,
            error=error,
        )
        return merged, self._content

    def _gone(self, outcome: Outcome) -> str:
        """What explains an error of a rank that has missed another one."""
        gone = [rank for rank in sorted(self.said) if self.outcomes[rank].status == "completed"]
        return f"; rank {gone[0]} had already ended" if gone and _missed(outcome) else ""

    def _order(self, rank: int) -> tuple[int, int]:
        """The lower, the more it explains: a lost node, a lack of memory, a killed process, an error of its own."""
        outcome = self.outcomes[rank]
        outside, alone = outcome.lost in ("node", "memory"), outcome.lost == "worker"
        reasons = (outside, outcome.status == "out_of_memory", alone, not _missed(outcome), True)
        return reasons.index(True), self.said.index(rank)

    def _content(self) -> bytes:
        if isinstance(self.weights, ExecutionError):
            raise self.weights
        return self.weights


def _missed(outcome: Outcome) -> bool:
    """Whether a rank may only have missed another one in an exchange."""
    return any(word in outcome.error for word in EXCHANGE)
