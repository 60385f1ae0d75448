from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.processes import runs
from tuner.machine.processes import ProcessExit, end_tree, exit_text, own_process, time_made

LINUX = tuple(int(part) for part in os.uname().release.split(".")[:2]) if sys.platform == "linux" else (0, 0)
# A process that is not our child, until a line comes: its parent prints its id, and asks for how it ended.
GRANDCHILD = "sh -c 'read line; {}' <&3 & echo $!; wait"


@pytest.mark.skipif(LINUX < (6, 15), reason="the kernel tells only parents")
@pytest.mark.parametrize(
    ("ends", "text"),
    [("exit 3", "ended with exit code 3"), ("kill -9 $$", "was killed by SIGKILL")],
)
def test_how_a_process_ended_that_is_another_ones_child(ends: str, text: str) -> None:
    command = ["sh", "-c", f"exec 3<&0; {GRANDCHILD.format(ends)}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin and parent.stdout
        watched = ProcessExit(int(parent.stdout.readline()))
        assert watched.text() == "", "it runs"
        parent.stdin.write("\n")
        parent.stdin.close()
        parent.wait()
        assert watched.text() == text


def test_the_end_of_a_process_that_is_gone_or_too_old_a_kernel_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert ProcessExit(gone.pid).text() == ""
    monkeypatch.setattr("tuner.machine.processes.GET_INFO", 0)
    assert ProcessExit(os.getpid()).text() == ""


def test_signals_are_called_by_name_and_one_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert exit_text(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert exit_text(-40) == "was killed by signal 40"
    monkeypatch.setattr("tuner.machine.processes.SHARED", tmp_path)
    assert exit_text(-signal.SIGBUS).startswith(f"was killed by SIGBUS: {tmp_path} may be full (")


STARTS = """
import os, subprocess, sys, time
first = subprocess.Popen(["sleep", "60"])
other = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], start_new_session=True, stdout=subprocess.PIPE)
print(first.pid, other.pid, int(other.stdout.readline()), flush=True)
time.sleep(60)
"""


def started() -> tuple[subprocess.Popen[str], list[int]]:
    """A process that leads a group, and what it has started."""
    process = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout
    with process.stdout as said:
        return process, [int(pid) for pid in said.readline().split()]


def test_a_process_is_ended_with_its_descendants_and_no_other_that_has_its_id() -> None:
    process, others = started()
    created = time_made(process.pid)
    end_tree(process.pid, created - 1, leads=True)  # a tick earlier
    assert all(map(runs, [process.pid, *others]))
    end_tree(process.pid, created, leads=True)
    assert not any(map(runs, [process.pid, *others]))
    process.wait()


def test_what_a_dead_process_has_left_in_its_group_is_ended() -> None:
    process, (first, *others) = started()
    created = time_made(process.pid)
    process.kill()
    process.wait()
    left_behind = psutil.Process(first)
    end_tree(process.pid, created, leads=False)
    assert runs(first), "it may be another one's group"
    end_tree(process.pid, created, leads=True)
    gone, _ = psutil.wait_procs([left_behind], timeout=10)
    assert gone
    for pid in others:
        os.kill(pid, signal.SIGKILL)


def test_when_a_process_was_made_does_not_depend_on_the_clock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ticks = time_made(os.getpid())
    assert own_process() == (os.getpid(), ticks, os.getpgrp() == os.getpid())
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    assert 0 < seconds <= time.clock_gettime(time.CLOCK_BOOTTIME)
    with pytest.raises(psutil.NoSuchProcess):
        time_made(2**22)
    monkeypatch.setattr("tuner.machine.processes.STAT", tmp_path / "stat")
    assert time_made(os.getpid()) == psutil.Process().create_time()


def test_a_program_whose_path_is_like_a_cleaners_name_is_ended() -> None:
    code = "import time; print(flush=True); time.sleep(60)"
    words = [sys.executable, "-c", code, "/home/me/resource_tracker/train.py"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        end_tree(process.pid, time_made(process.pid), leads=False)
        assert not runs(process.pid)
        process.kill()
