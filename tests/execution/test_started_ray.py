"""A local Ray that is ended while it starts."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tuner.errors import ExecutionError
from tuner.execution.cluster import StartedRay

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_nothing_starts_once_it_has_been_ended() -> None:
    started = StartedRay()
    process = started.start(SLEEPS)
    started.end()
    assert process.wait(10) != 0
    with pytest.raises(ExecutionError, match="the study has been aborted"):
        started.start(SLEEPS)


def test_the_library_that_connects_to_it_is_waited_for() -> None:
    """Killed under it, Ray's library ends the study's process with code 1 and a message of its own."""
    started = StartedRay()
    process = started.start(SLEEPS)
    with started.joining:
        end = threading.Thread(target=started.end)
        end.start()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
    end.join()
    assert process.wait(10) != 0
