"""The parts of Ray that tuner uses, with types: Ray itself has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NewType, Protocol, TypedDict, TypeVar

T_co = TypeVar("T_co", covariant=True)
RAY_STEP = 10_000  # Ray counts resources in units of 1 / RAY_STEP
ObjectRef = NewType("ObjectRef", object)


class Remote(Protocol[T_co]):
    """A remote function, an actor's method or its class; ``T_co`` is what a call returns at once."""

    def options(self, **options: object) -> Remote[T_co]:
        """The same with other options of Ray's."""

    def remote(self, *arguments: object) -> T_co:
        """Calls it."""


class WorkerHandle(Protocol):
    """A Ray actor of ``tuner.execution.actor.Worker``."""

    run: Remote[Iterator[ObjectRef]]
    answer: Remote[ObjectRef]
    ping: Remote[ObjectRef]


class PlacementGroup(Protocol):
    """A reservation of resources on a node."""

    def wait(self, timeout_seconds: float) -> bool:
        """Whether the resources are reserved within this time."""


class Node(TypedDict):
    """An entry of ``ray.nodes()``."""

    NodeID: str
    Alive: bool
    NodeManagerAddress: str
    NodeManagerHostname: str
    Resources: dict[str, float]
