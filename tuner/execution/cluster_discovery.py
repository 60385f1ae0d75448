"""A Ray cluster that a study joins: where it is, whether it answers, and whether it asks for a token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import InputError
from tuner.execution.cluster import Session, quiet
from tuner.machine.caps import environment

PORT_SECONDS = 3
ANSWER_SECONDS = 10
JOIN_SECONDS = 60
AUTH_MODE = "RAY_AUTH_MODE"


def joined_session(address: str) -> Session:
    """A connection to the cluster at an address, which is waited for.

    Args:
        address: "HOST:PORT", or "auto" for the one that ``RAY_ADDRESS`` or the last ``ray start`` here tells of.

    Raises:
        InputError: no Ray answers there within 15 s, it does not let this process in, or the process is connected to
            another one.
        ExecutionError: joining takes more than a minute.
        KeyboardInterrupt: the user broke it off; the process is not connected then.
    """
    session = Session(_joined(find_address(address)))
    try:
        session.wait(PORT_SECONDS + ANSWER_SECONDS + JOIN_SECONDS)
    except KeyboardInterrupt:  # nobody else knows of it yet
        session.stop()
        raise
    return session


def find_address(address: str) -> str:
    """The "HOST:PORT" that an address stands for; "auto" is looked up where Ray's own tools look.

    Raises:
        InputError: there is nothing to be found, or it is of another form.
    """
    if address == "auto":
        folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        current = Path(folder) / "ray" / "ray_current_cluster"
        address = os.environ.get("RAY_ADDRESS", "")
        if not address and current.is_file():
            address = current.read_text().strip()
        if not address:
            raise InputError(
                f"--address auto: RAY_ADDRESS is not set, and there is no {current}: is Ray started here?"
            )
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise InputError(f"--address {address}: not of the form HOST:PORT, such as 10.0.0.1:6379")
    return address


def port_answers(address: str, timeout_seconds: float) -> bool:
    """Whether anything listens at "HOST:PORT"."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_seconds).close()
    except OSError:
        return False
    return True


@contextmanager
def _joined(address: str) -> Iterator[bool]:
    quiet()
    import ray

    if ray.is_initialized():
        connected = ray.get_runtime_context().gcs_address
        if address.rpartition(":")[2] != connected.rpartition(":")[2]:
            raise InputError(f"--address {address}: this process is connected to the Ray at {connected} already")
        yield False
        return
    with _auth_mode(_check(address)):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise InputError(f"--address {address}: cannot join: {' '.join(str(error).split())}") from error
        yield True
        ray.shutdown()


def _check(address: str) -> str:
    """Whether the Ray at an address asks for a token: "token" or "disabled".

    Raises:
        InputError: none answers, or it does not take the token that there is.
    """
    if not port_answers(address, PORT_SECONDS):
        raise InputError(f"--address {address}: nothing listens there: is it the address of a Ray head that runs?")
    refusal = _refusal(address, "disabled")
    if not refusal:
        return "disabled"
    if "AuthenticationError" not in refusal:
        raise InputError(f"--address {address}: Ray refuses: {refusal}")
    if _refusal(address, "token"):
        raise InputError(
            f"--address {address}: Ray asks for a token, and there is none here or a wrong one: copy the head's "
            "~/.ray/auth_token to this user's"
        )
    return "token"


def _refusal(address: str, mode: str) -> str:
    """Why the Ray at an address has nothing to do with this process; empty if it has.

    Asks in a process of its own, which can be ended: ``ray.init`` would hang for minutes.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    variables = {**os.environ, AUTH_MODE: mode}
    try:
        answer = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"--address {address}: what listens there does not answer like a Ray head within {ANSWER_SECONDS} s"
        ) from error
    said = [line.strip() for line in answer.stderr.splitlines() if line.strip()] or ["it gives no reason"]
    return said[-1] if answer.returncode else ""


@contextmanager
def _auth_mode(mode: str) -> Iterator[None]:
    """In this block this process asks for a token where Ray's other processes do, and nowhere else.

    Where a driver asks for one that the cluster does not show, Ray's head cannot reach it, takes it for dead and ends
    its workers.
    """
    import ray

    with environment({AUTH_MODE: mode}):
        ray._raylet.Config.initialize("")  # reads the variable again
        yield
    ray._raylet.Config.initialize("")
