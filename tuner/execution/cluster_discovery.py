"""Finds and joins a Ray cluster: its address, whether it answers, and whether it asks for a token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner.errors import ParameterError, one_line
from tuner.execution.cluster import RayConnection, quiet
from tuner.execution.ray_errors import last_line
from tuner.machine.caps import environment

PORT_SECONDS = 3
ANSWER_SECONDS = 10
JOIN_SECONDS = 60
AUTH_MODE = "RAY_AUTH_MODE"
CURRENT_CLUSTER = "ray_current_cluster"  # Ray's file with the address


def join_cluster(address: str) -> RayConnection:
    """Connects this process to the cluster at "HOST:PORT" or "auto", and waits for that.

    Raises:
        InputError: no Ray answers within 15 s or it rejects this process, or the process is connected to another one.
        ExecutionError: joining takes more than a minute.
        KeyboardInterrupt: the user interrupted it; the process is not connected then.
    """
    connection = RayConnection(_joined(find_address(address)))
    try:
        connection.wait(PORT_SECONDS + ANSWER_SECONDS + JOIN_SECONDS)
    except KeyboardInterrupt:  # the caller does not have it yet
        connection.stop()
        raise
    return connection


def ray_folder() -> Path:
    """The folder of Ray's sessions on this machine."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"


def announced_address() -> str:
    """The address in ``RAY_ADDRESS``, or that the last ``ray start`` on this machine wrote down; else empty."""
    with suppress(OSError):
        return os.environ.get("RAY_ADDRESS") or (ray_folder() / CURRENT_CLUSTER).read_text().strip()
    return ""


def find_address(address: str) -> str:
    """The "HOST:PORT" that an address stands for; "auto" is looked up where Ray's own tools look.

    Raises:
        InputError: there is no cluster, or its address has another form.
    """
    if address == "auto":
        address = announced_address()
        if not address:
            missing = f"RAY_ADDRESS is not set, and there is no {ray_folder() / CURRENT_CLUSTER}"
            raise ParameterError("address", "auto", missing, "is Ray started here?")
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ParameterError("address", address, "not of the form HOST:PORT, such as 10.0.0.1:6379")
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
            raise ParameterError("address", address, f"this process is connected to the Ray at {connected} already")
        yield False
        return
    with _auth_mode(_check(address)):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ParameterError("address", address, "cannot join", one_line(error)) from error
        yield True
        ray.shutdown()


def _check(address: str) -> str:
    """Whether the Ray at an address asks for a token: "token" or "disabled"."""
    if not port_answers(address, PORT_SECONDS):
        raise ParameterError(
            "address", address, "nothing listens there", "is it the address of a Ray head that runs?"
        )
    refusal = _refusal(address, "disabled")
    if not refusal:
        return "disabled"
    if "AuthenticationError" not in refusal:
        raise ParameterError("address", address, "Ray refuses", refusal)
    if _refusal(address, "token"):
        raise ParameterError(
            "address",
            address,
            "Ray asks for a token, and there is none here or a wrong one",
            "copy the head's ~/.ray/auth_token to this user's",
        )
    return "token"


def _refusal(address: str, mode: str) -> str:
    """Why the Ray at an address rejects this process; empty if it does not.

    Asks in a process of its own, which can be ended: ``ray.init`` would hang for minutes.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    variables = {**os.environ, AUTH_MODE: mode}
    try:
        answer = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        wrong = f"what listens there does not answer like a Ray head within {ANSWER_SECONDS} s"
        raise ParameterError("address", address, wrong) from error
    return last_line(answer.stderr) if answer.returncode else ""


@contextmanager
def _auth_mode(mode: str) -> Iterator[None]:
    """In this block this process asks for a token if the cluster's processes do.

    If only the driver asks for one, Ray's head cannot reach it, takes it for dead and ends its workers.
    """
    import ray

    with environment({AUTH_MODE: mode}):
        ray._raylet.Config.initialize("")  # reads the variable again
        yield
    ray._raylet.Config.initialize("")
