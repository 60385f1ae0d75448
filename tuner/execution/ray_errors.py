"""What Ray's errors say of a trial whose worker is gone, or could not be made."""

from __future__ import annotations

import re
from typing import Any

from tuner.machine.caps import OUT_OF_MEMORY
from tuner.trial import GB, Lost, Status

ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours in Ray's messages
# Ray has a type for what its memory monitor does, but where another error quotes it there is only the text.
MONITOR = "due to the node running low on memory"
EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")
MEMORY_ERRORS = ("MemoryError", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")


def plain(error: Exception) -> str:
    """An error's text without colours."""
    return ANSI.sub("", str(error))


def last_line(text: str) -> str:
    """The last line that is not empty: of a traceback, the one that says what went wrong."""
    lines = [line.strip() for line in ANSI.sub("", text).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"


def exception_line(text: str) -> str:
    """The last line that begins with an exception's name, as torch's own go on for several lines; or the last."""
    named = [line.strip() for line in ANSI.sub("", text).splitlines() if EXCEPTION.match(line.strip())]
    return named[-1] if named else last_line(text)


def first_line(text: str) -> str:
    """The first line that is not empty: of what Ray says of a worker's death, the one that sums it up."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")


def killed_by_monitor(error: Exception) -> bool:
    """Whether Ray's memory monitor has killed the worker."""
    import ray

    return isinstance(error, ray.exceptions.OutOfMemoryError) or MONITOR in str(error)


def raised(error: Exception) -> bool:
    """Whether there was an exception in the worker, as it was made or in its trial: then it did not just die."""
    import ray

    if isinstance(error, ray.exceptions.RayActorError):
        return bool(error.actor_init_failed)
    own = (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError)
    return isinstance(error, own) or not isinstance(error, ray.exceptions.RayError)


def monitored_peak(error: Exception, worker: Any) -> int | None:
    """What the memory monitor says that the worker had, in bytes; None where it says nothing."""
    own = re.search(rf"Actor\({worker._actor_id.hex()}\).*?actual memory used=([\d.]+)GB", plain(error))
    return int(float(own[1]) * GB) if own else None


def verdict(error: Exception, *, kernel_killed: bool) -> tuple[Status, Lost, str]:
    """A trial's status, what was lost under it, and why, by the error with which its worker ended.

    Args:
        error: Ray's.
        kernel_killed: the node's kernel has killed a process for want of memory meanwhile.
    """
    text = plain(error)
    if killed_by_monitor(error):
        used = first_line(text).rpartition("low on memory. ")[2]
        return "out_of_memory", "worker", f"the worker was killed by Ray's memory monitor: {used}"
    if raised(error):
        last = exception_line(text)
        memory = last.startswith(MEMORY_ERRORS) or any(sign in last for sign in OUT_OF_MEMORY)
        return "out_of_memory" if memory else "failed", "", f"the worker was lost: {last}"
    if kernel_killed:
        return "out_of_memory", "worker", "the worker was lost: the kernel killed it, as memory ran out"
    return "failed", "worker", f"the worker was lost: {first_line(text)}"
