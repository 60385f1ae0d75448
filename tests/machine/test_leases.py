from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.machine.leases import LeaseHolder, Share, read_leases

SHARE = Share("t001", "GPU-1", 3 * 2**30, 1)
HOLD = """
import sys, time
from tuner.machine.leases import LeaseHolder
holder = LeaseHolder("another study")
with holder.exclusive():
    pass
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path / f"tuner-{os.getuid()}"


@pytest.fixture
def other() -> Iterator[LeaseHolder]:
    holder = LeaseHolder("the other")
    with holder.exclusive():
        holder.lease = replace(holder.lease, shares=(SHARE,))
    yield holder
    holder.close()


def test_a_study_sees_what_another_one_has_promised_and_not_itself(other: LeaseHolder) -> None:
    own = LeaseHolder("own")
    with own.exclusive() as found:
        assert [(lease.name, lease.reserved_bytes("GPU-1"), lease.reserved_bytes("GPU-2")) for lease in found] == [
            ("the other", 3 * 2**30, 0)
        ]
    own.close()


def test_a_lease_that_ends_is_seen_by_nobody_and_leaves_nothing(other: LeaseHolder, folder: Path) -> None:
    assert [lease.name for lease in read_leases()] == ["the other"]
    other.close()
    assert read_leases() == []
    assert not folder.exists()


def test_the_lease_of_a_killed_process_ends_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        assert [lease.pid for lease in read_leases()] == [process.pid]
        process.send_signal(signal.SIGKILL)
    assert read_leases() == []
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_forked_keeps_no_lease(other: LeaseHolder) -> None:
    inside, outside = os.pipe()
    if not (child := os.fork()):
        os.read(inside, 1)
        os._exit(0)
    other.close()
    assert read_leases() == []
    os.write(outside, b".")
    os.waitpid(child, 0)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', json.dumps({"pid": 1, "name": "", "shares": [1]})])
def test_a_lease_that_cannot_be_read_counts_as_none(other: LeaseHolder, folder: Path, content: str) -> None:
    next(folder.glob("lease-*.json")).write_text(content)
    assert read_leases() == []


def test_where_the_lock_cannot_be_had_a_study_goes_on_with_what_it_knows(other: LeaseHolder) -> None:
    own = LeaseHolder("own", lock_seconds=0.01)
    with own.exclusive() as before:
        assert [lease.name for lease in before] == ["the other"]
    with other.exclusive(), own.exclusive() as found:
        assert found == before
    with own.exclusive() as found:  # the lock is not tried again at once
        assert found == before
    own.close()


def test_a_study_goes_on_alone_where_there_is_no_private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    own = LeaseHolder("own")
    with own.exclusive() as found:
        own.lease = replace(own.lease, shares=(SHARE,))
        assert found == ()
    assert read_leases() == []
    own.close()
