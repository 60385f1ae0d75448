"""The trials that wait, and which of them starts next.

``Group`` holds trials of about the same needs, so that what fits a device is found without going through them all.
"""

import math
from bisect import bisect_left, insort
from itertools import count
from operator import itemgetter

from tuner.trial import Request

Amounts = tuple[int, int]  # of memory and RAM, in bytes
# What trials are sorted by: the seed, the negated seconds and need or the reverse, and the order of arrival. Then
# the needs of memory and RAM, the seconds, and the share of a device or of a host's RAM.
Entry = tuple[int, float, float, int, int, int, float, float, Request]
NEED, RAM = itemgetter(4), itemgetter(5)
BLOCK = 64  # the most entries of a block


class Sorted:
    """A sorted list of trials, in blocks whose smallest needs are known."""

    def __init__(self) -> None:
        """Without a trial."""
        self._blocks: list[list[Entry]] = []
        self._least: list[Amounts] = []  # of each block: the smallest need of memory, and of RAM
        self.least = 0, 0  # of all blocks

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def head(self) -> Entry:
        """The first trial, whether it fits or not."""
        return self._blocks[0][0]

    def add(self, entry: Entry) -> None:
        """Adds a trial."""
        if not self._blocks:
            self._blocks, self._least, self.least = [[entry]], [entry[4:6]], entry[4:6]
            return
        at = min(bisect_left(self._blocks, entry, key=lambda block: block[-1]), len(self._blocks) - 1)
        block = self._blocks[at]
        insort(block, entry)
        self._least[at], self.least = _smaller(self._least[at], entry), _smaller(self.least, entry)
        if len(block) > BLOCK:
            halves = [block[: BLOCK // 2], block[BLOCK // 2 :]]
            self._blocks[at : at + 1] = halves
            self._least[at : at + 1] = [_least(half) for half in halves]

    def remove(self, entry: Entry) -> None:
        """Takes a trial out."""
        at = bisect_left(self._blocks, entry, key=lambda block: block[-1])
        block, before = self._blocks[at], self._least[at]
        del block[bisect_left(block, entry)]
        if not block:
            del self._blocks[at], self._least[at]
        elif before[0] == entry[4] or before[1] == entry[5]:
            self._least[at] = _least(block)
        need, ram = self._least[at] if block else (math.inf, math.inf)
        if self._blocks and (before[0] == self.least[0] < need or before[1] == self.least[1] < ram):
            self.least = min(need for need, _ in self._least), min(ram for _, ram in self._least)

    def first(self, room_bytes: float, ram_bytes: float, seconds: float) -> Entry | None:
        """The first trial in order that fits, and takes no longer. If that is bounded, the longest are the first."""
        head = self._blocks[0][0]
        if head[4] <= room_bytes and head[5] <= ram_bytes and head[6] <= seconds:
            return head
        for block, (need, ram) in zip(self._blocks, self._least, strict=True):
            if block[0][0] == (last := block[-1])[0] and last[6] > seconds:  # all are of one seed, and take longer
                continue
            if need <= room_bytes and ram <= ram_bytes:
                for entry in block:
                    if entry[4] <= room_bytes and entry[5] <= ram_bytes and entry[6] <= seconds:
                        return entry
        return None


def _least(block: list[Entry]) -> Amounts:
    return min(map(NEED, block)), min(map(RAM, block))


def _smaller(least: Amounts, entry: Entry) -> Amounts:
    """The smaller need of memory, and the smaller one of RAM."""
    need, ram = entry[4:6]
    return least if least[0] <= need and least[1] <= ram else (min(least[0], need), min(least[1], ram))


class Group:
    """Trials of about the same needs, by their seconds and, if that matters, by their need of memory."""

    def __init__(self, most_share: float, orders: int) -> None:
        """Without a trial. None takes more than this share of a device or of a host's RAM."""
        self.most_share = most_share
        self.orders = [Sorted() for _ in range(orders)]


class Queue:
    """Waiting trials with the bytes that each will be given.

    If memory may keep a worker idle, large and long trials start first: by the share of a device or of a host's RAM
    that a trial takes, plus its seconds as a share of the time that the devices need for all that waits. So the
    largest start first while much waits, and then the longest, which would otherwise run alone at the end. If
    memory is no limit, the longest starts first, and of equally long ones the largest. A trial of unknown duration
    counts as the longest. Lower seeds go first, so that a study that ends early has results of every configuration.
    """

    def __init__(
        self,
        *,
        memory_binds: bool = True,
        largest: Amounts = (1, 0),
        total: Amounts = (1, 0),
        slots: float = math.inf,
    ) -> None:
        """An empty queue for devices that together have ``total`` memory and RAM, and this number of slots.

        ``largest`` has the memory of the largest device and the RAM of the largest host. RAM is 0 if it is unknown.
        """
        self._memory_binds = memory_binds
        self._largest = largest[0], largest[1] or math.inf
        self._capacity = total[0], total[1] or math.inf, slots
        self._order = count()
        self._groups: dict[tuple[int, int], Group] = {}  # by the classes of memory and RAM, the largest first
        self._entries: dict[str, list[Entry]] = {}  # by trial id: one for each order of its group
        self._work = [0, 0, 0]  # milliseconds times memory, RAM and slots, of trials whose seconds are known

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def requests(self) -> list[Request]:
        """What waits."""
        return [entries[0][-1] for entries in self._entries.values()]

    def add(self, request: Request, need: int, turn: int | None = None) -> None:
        """Adds a trial; ``turn`` is its order of arrival, by default after all others."""
        seconds = math.inf if request.seconds is None else request.seconds
        share = self._share(need, request.host_bytes)
        end = next(self._order) if turn is None else turn, need, request.host_bytes, seconds, share, request
        entries: list[Entry] = [(request.trial.seed, -seconds, -need, *end)]
        if self._memory_binds:
            entries.append((request.trial.seed, -need, -seconds, *end))
        self._entries[request.trial.trial_id] = entries
        key = need.bit_length(), request.host_bytes.bit_length()
        if key not in self._groups:
            self._groups[key] = Group(self._share(2 ** key[0], 2 ** key[1]), len(entries))
            self._groups = dict(sorted(self._groups.items(), key=lambda item: item[1].most_share, reverse=True))
        for order, entry in zip(self._groups[key].orders, entries, strict=True):
            order.add(entry)
        self._count(entries[0], 1)

    def first(self, room_bytes: float, ram_bytes: float, seconds: float = math.inf) -> tuple[int, Request] | None:
        """Need and request of the next trial for a device with this free memory and RAM; None if none fits.

        It is expected to take at most ``seconds``.
        """
        work = max(work / capacity for work, capacity in zip(self._work, self._capacity, strict=True))
        per_second = 1000 / work if self._memory_binds and work else 1.0
        best: tuple[int, float, int, int, Entry] | None = None
        for group in self._groups.values():
            longest = group.orders[0]
            need, ram = longest.least
            if need > room_bytes or ram > ram_bytes:
                continue
            seed, negated_seconds, *_ = longest.head
            if best and (seed, negated_seconds * per_second - group.most_share) > best[:2]:
                continue  # none of them could go first
            for order in group.orders if seconds == math.inf else group.orders[:1]:
                if entry := order.first(room_bytes, ram_bytes, seconds):
                    seed, _, _, turn, need, _, takes, share, _ = entry
                    rank = seed, -takes * per_second - share, -need, turn, entry
                    if best is None or rank < best:
                        best = rank
        return (best[-1][4], best[-1][-1]) if best else None

    def has_room(self, room_bytes: float) -> bool:
        """Whether a trial fits a device with this free memory, if RAM is no limit."""
        return any(group.orders[0].least[0] <= room_bytes for group in self._groups.values())

    def pop(self, trial_id: str) -> int | None:
        """Takes a trial out if it waits, and returns its turn."""
        if (entries := self._entries.pop(trial_id, None)) is None:
            return None
        turn, need, ram = entries[0][3:6]
        key = need.bit_length(), ram.bit_length()
        for order, entry in zip(self._groups[key].orders, entries, strict=True):
            order.remove(entry)
        if not self._groups[key].orders[0]:
            del self._groups[key]
        self._count(entries[0], -1)
        return turn

    def _count(self, entry: Entry, sign: int) -> None:
        need, ram, seconds = entry[4:7]
        if seconds < math.inf:
            milliseconds, work = sign * round(1000 * seconds), self._work
            self._work = [work[0] + milliseconds * need, work[1] + milliseconds * ram, work[2] + milliseconds]

    def _share(self, need: float, ram: float) -> float:
        """The share of a device or of a host's RAM that a trial takes, whichever is more."""
        return max(need / self._largest[0], ram / self._largest[1]) if self._memory_binds else 0.0
