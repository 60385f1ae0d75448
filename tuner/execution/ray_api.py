"""The parts of Ray that tuner uses, with types, which Ray lacks, and what its errors about a lost worker mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NewType, Protocol, TypedDict, TypeVar

from tuner.machine.caps import OUT_OF_MEMORY, OUT_OF_RAM
from tuner.machine.processes import exit_text
from tuner.trial import GB, Device, Lost, Status

T_co = TypeVar("T_co", covariant=True)
RAY_STEP = 10_000  # Ray counts resources in units of 1 / RAY_STEP
ObjectRef = NewType("ObjectRef", object)
ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours in Ray's messages
# Part of the memory monitor's error, which has its own class, but may also be quoted in other errors.
MONITOR = "due to the node running low on memory"
EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")
MEMORY_ERRORS = ("MemoryError", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
PID = re.compile(r"^\s*pid: (\d+)", re.MULTILINE)
EXIT_CODE = re.compile(r"\bexit code (\d+)")
NO_REASON = "no reason was given"


class Remote(Protocol[T_co]):
    """A remote function, an actor's method or its class; ``T_co`` is what a call returns at once."""

    def options(self, **options: object) -> Remote[T_co]:
        """The same with other options of Ray's."""

    def remote(self, *arguments: object) -> T_co:
        """Calls it."""


class WorkerHandle(Protocol):
    """A Ray actor of ``tuner.execution.child.Worker``."""

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


def plain_text(error: Exception) -> str:
    """An error's text without colours."""
    return ANSI.sub("", str(error))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in ANSI.sub("", text).splitlines() if line.strip()] or [NO_REASON]


def last_line(text: str) -> str:
    """The last line of a text: in a traceback, the one that names the error."""
    return _lines(text)[-1]


def exception_line(text: str) -> str:
    """The last line that begins with an exception's name, as torch's errors have several lines; or the last line."""
    lines = _lines(text)
    return next((line for line in reversed(lines) if EXCEPTION.match(line)), lines[-1])


def killed_by_monitor(error: Exception) -> bool:
    """Whether Ray's memory monitor has killed the worker."""
    import ray

    return isinstance(error, ray.exceptions.OutOfMemoryError) or MONITOR in str(error)


def raised_in_worker(error: Exception) -> bool:
    """Whether an exception was raised in the worker or its construction, so that it did not just die."""
    import ray

    if isinstance(error, ray.exceptions.RayActorError):
        return bool(error.actor_init_failed)
    own = (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError)
    return isinstance(error, own) or not isinstance(error, ray.exceptions.RayError)


def pid_of(error: Exception) -> int | None:
    """The process id of the actor that died; None if the error does not say."""
    found = PID.search(plain_text(error))
    return int(found[1]) if found else None


def monitored_peak(error: Exception, worker: WorkerHandle) -> int | None:
    """The bytes that the worker had according to Ray's memory monitor; None if the error does not say."""
    actor_id = worker._actor_id.hex()  # type: ignore[attr-defined]
    own = re.search(rf"Actor\({actor_id}\).*?actual memory used=([\d.]+)GB", plain_text(error))
    return int(float(own[1]) * GB) if own else None


def ran_out_of_ram(device: Device, error: Exception) -> bool:
    """Whether a worker on a GPU that ended out of memory was short of its host's RAM.

    Unless its own exception names the GPU's memory, it was killed for lack of RAM.
    """
    last = exception_line(plain_text(error))
    of_gpu = raised_in_worker(error) and not (last.startswith("MemoryError") or any(s in last for s in OUT_OF_RAM))
    return device.kind == "cuda" and not of_gpu


def classify_loss(
    error: Exception, *, kernel_killed: bool, at_cap: bool = False, how: str = ""
) -> tuple[Status, Lost, str]:
    """The status of a trial whose worker ended with this error, what was lost, and the reason in one line.

    ``kernel_killed`` says whether the node's kernel has killed a process because memory ran out, ``at_cap`` whether
    the trial last reported a peak at its cap, and ``how`` how the worker ended, if that is known.
    """
    import ray

    text = plain_text(error)
    first = _lines(text)[0]
    if killed_by_monitor(error):
        used = first.rpartition("low on memory. ")[2]
        return "out_of_memory", "worker", f"the worker was killed by Ray's memory monitor: {used}"
    if raised_in_worker(error):
        last = exception_line(text)
        memory = last.startswith(MEMORY_ERRORS) or any(sign in last for sign in OUT_OF_MEMORY)
        return "out_of_memory" if memory else "failed", "", f"the worker was lost: {last}"
    if found := EXIT_CODE.search(text):
        how = how or f"its process {exit_text(int(found[1]))}"
    if kernel_killed:
        return "out_of_memory", "worker", "the worker was lost: the kernel killed it, as memory ran out"
    if at_cap and isinstance(error, ray.exceptions.ActorDiedError):  # libraries crash where an allocation fails
        return "out_of_memory", "worker", f"the worker was lost at its trial's share of memory: {how or first}"
    return "failed", "worker", f"the worker was lost: {how or first}"
