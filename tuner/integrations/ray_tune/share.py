"""A trial's share of a device as Tune asks Ray for it, and how it grows when the trial runs again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import uuid4
from weakref import WeakValueDictionary

from ray.exceptions import RayActorError
from ray.tune import PlacementGroupFactory

from tuner.trial import Request

RAY_STEP = 10_000  # Ray counts resources in units of 1 / RAY_STEP


@dataclass(frozen=True)
class Budget:
    """What the trials of a device divide between them.

    Attributes:
        kind: "cuda", or "cpu" for a machine's RAM.
        budget_bytes: min(total − buffer, free) of the smallest device, as Tune cannot choose a trial's.
        ray_amount: what Ray has of the device: 1 GPU, or a node's memory in bytes.
    """

    kind: Literal["cuda", "cpu"]
    budget_bytes: int
    ray_amount: float

    def fraction(self, need_bytes: int) -> float:
        """The share that so many bytes are, rounded down to Ray's digits, so that the last trial fits as well."""
        return max(1, math.floor(min(1.0, need_bytes / self.budget_bytes) * RAY_STEP)) / RAY_STEP

    def resources(self, need_bytes: int) -> dict[str, float]:
        """The share as Ray's resources."""
        amount = self.fraction(need_bytes) * self.ray_amount
        return {"GPU": amount} if self.kind == "cuda" else {"memory": math.floor(amount)}


class Share(PlacementGroupFactory):  # type: ignore[misc]
    """What Tune asks Ray for: one trial's share, which is larger after an attempt that ran out of memory.

    Tune keeps this object with its trial, in the driver, and sends a copy with every attempt. It is a key of Tune's
    dictionaries, so each equals only itself, whatever it has grown to.

    Attributes:
        share_id: by which an attempt's copy tells the driver's.
        request: the attempt, what it needs, and how earlier ones have ended.
        budget: of its device; None of a trial that can run on none.
        refusal: why it cannot; else empty.
        delay_seconds: how long the attempt waits for its memory to be free, at most.
    """

    def __init__(
        self, request: Request, budget: Budget | None, others: Mapping[str, float], refusal: str = ""
    ) -> None:
        """Asks for the share, and for ``others`` of Ray's resources, such as ``{"CPU": 1}``."""
        self.share_id = uuid4().hex
        self.request = request
        self.budget = budget
        self.refusal = refusal
        self.delay_seconds = 0.0
        self._others = dict(others)
        self._bundle()
        _LIVING[self.share_id] = self

    @property
    def fraction(self) -> float:
        """The share, from 0 to 1."""
        return self.budget.fraction(self.request.need_bytes) if self.budget else 0.0

    def grow(self, request: Request, delay_seconds: float) -> None:
        """Makes the share that of the next attempt; of one that it has had already it is told in vain."""
        if request.trial.attempt == self.request.trial.attempt + 1:
            self.request = replace(self.request, **{name: getattr(request, name) for name in GROWING})
            self.delay_seconds = delay_seconds
            self._bundle()

    def _bundle(self) -> None:
        share = self.budget.resources(self.request.need_bytes) if self.budget else {}
        super().__init__([{**self._others, **share} or {"CPU": 1.0}])

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _LIVING.setdefault(self.share_id, self)  # of a restored experiment; in a driver that has it, that one stays


GROWING = ("trial", "need_bytes", "history")
_LIVING: WeakValueDictionary[str, Share] = WeakValueDictionary()


class RunAgain(RayActorError):  # type: ignore[misc]
    """Raised by an attempt that ran out of memory: Tune runs the trial again from its last checkpoint, with more.

    Tune does so by itself, whatever its ``FailureConfig``, when a trial's actor was preempted: when the error that it
    is shown is a ``RayActorError`` which says so. It asks in the driver, and there the share grows before it answers.
    """

    def __init__(self, share_id: str = "", request: Request | None = None, delay: float = 0.0, why: str = "") -> None:
        """Takes what the next attempt is; all by place, as a copy of an exception is made of what it was given."""
        super().__init__(None, why, False, True)
        self.share_id = share_id
        self.request = request
        self.delay = delay

    @property
    def preempted(self) -> bool:
        """Whether Tune is to run the trial again: yes, where its share is known and can grow."""
        share = _LIVING.get(self.share_id)
        if share is None or self.request is None:
            return False
        share.grow(self.request, self.delay)
        return True
