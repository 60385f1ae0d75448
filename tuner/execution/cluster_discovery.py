"""Finds and joins a Ray cluster: its address, whether it answers, and whether it requires a token."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner.errors import ParameterError, one_line
from tuner.execution.cluster import AUTH_MODE, RayConnection, authentication, quiet
from tuner.execution.ray_api import last_line

PORT_SECONDS = 3
ANSWER_SECONDS = 10
JOIN_SECONDS = 60
CURRENT_CLUSTER = "ray_current_cluster"  # Ray's file with the address


def join_cluster(address: str) -> RayConnection:
    """Connects this process to the cluster at "HOST:PORT" or "auto", and waits for that.

    Raises:
        InputError: no Ray answers there, it rejects this process, or the process is connected to another one.
        ExecutionError: joining takes too long.
    """
    connection = RayConnection(_joined(find_address(address)))
    try:
        connection.wait(PORT_SECONDS + ANSWER_SECONDS + JOIN_SECONDS)
    except KeyboardInterrupt:  # the caller cannot stop it
        connection.stop()
        raise
    return connection


def ray_folder() -> Path:
    """The folder of Ray's sessions on this machine."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"


def announced_address() -> str:
    """The address in ``RAY_ADDRESS``, or else of the last ``ray start`` on this machine; empty if there is none."""
    with suppress(OSError):
        return os.environ.get("RAY_ADDRESS") or (ray_folder() / CURRENT_CLUSTER).read_text().strip()
    return ""


def find_address(address: str) -> str:
    """The "HOST:PORT" of an address; "auto" is looked up where Ray's tools look."""
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
    with authentication(_check(address)):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ParameterError("address", address, "cannot join", one_line(error)) from error
        yield True
        ray.shutdown()


def _check(address: str) -> str:
    """The authentication mode of the Ray at an address: "token" or "disabled"."""
    if not port_answers(address, PORT_SECONDS):
        raise ParameterError("address", address, "nothing listens there", "is it the address of a running Ray head?")
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

    A separate process asks, as it can be killed; ``ray.init`` would hang for minutes.
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
