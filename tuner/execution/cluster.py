"""A study's connection to Ray: to a cluster, or to a local Ray that starts in the background while it is planned."""

import atexit
import ctypes
import logging
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tuner.errors import ExecutionError, InputError, ParameterError, TunerError, last_line, one_line, option
from tuner.execution.preload import Spawned
from tuner.machine.caps import environment
from tuner.machine.interrupts import SIGNALS, take_back
from tuner.machine.private_folder import NAME_LENGTH, SOCKET_BYTES, private_folder, usable_bases
from tuner.machine.processes import LOG_BYTES, port_answers
from tuner.trial import MB, Device

PORT_SECONDS = 3
ANSWER_SECONDS = 60  # on a slow machine Python alone takes several to start
CLUSTER_SECONDS = 60  # to join it
CURRENT_CLUSTER = "ray_current_cluster"  # Ray's file with the address

OBJECT_STORE_BYTES = 256 * MB  # enough for the data sets' arrays; /dev/shm is small in many containers
PROCESSES = {
    **{"RAY_ROTATION_MAX_BYTES": str(LOG_BYTES), "RAY_ROTATION_BACKUP_COUNT": "1"},  # of each process's output
    "RAY_kill_child_processes_on_worker_exit": "false",  # a worker ends them, but those that remove shared memory
}
STOP_SECONDS = 60
JOIN_SECONDS = 3.0  # for Ray's C++ library to connect to what we have started
OWN_STOP_SECONDS = 1.0  # for our own Ray to end by itself; a study that is broken off does not wait for it
INTERRUPTED = 130  # the exit code
AUTH_MODE, AUTH_TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
SERVICES = ("start_api_server", "start_log_monitor", "start_monitor")
TEMPORARY = "ray"  # Ray opens its folder to everybody, so it lies in a private one
# The longest path that Ray makes in there, as process ids have at most seven digits.
LONGEST_SOCKET = f"/{TEMPORARY}/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store"
# Ray prints long messages about lost workers and nodes in the driver. The study prints a line about each.
SKIPPED_LOGS = (
    "A worker died or was killed while executing|were killed due to the node running low on memory|"
    "Raylet is terminated|has been marked dead because the detector|Traceback \\(most recent call last\\)"
)


class StartedRay:
    """The processes of a local Ray and its folder."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.joining = threading.Lock()  # held while Ray's C++ library connects to them
        self._processes: list[Spawned] = []
        self._ended = False

    def start(self, *arguments: Any, **options: Any) -> Spawned:
        """Starts a process in a session of its own, so that signals to the study's group do not reach it."""
        self.check()
        self._processes.append(Spawned(*arguments, **options))
        return self._processes[-1]

    def check(self) -> None:
        """Raises an ExecutionError if they have been ended."""
        if self._ended:
            raise ExecutionError("the study has been aborted")

    def end(self) -> None:
        """Kills the processes with their descendants, and removes the folder.

        Ray's C++ library ends this process with code 1 if what it connects to is killed, so that is waited for.
        """
        self._ended = True
        if self.joining.acquire(timeout=JOIN_SECONDS):
            self.joining.release()  # the next to take it looks whether they have been ended
        for process in reversed(self._processes):
            process.end()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class RayConnection:
    """A connection of this process to Ray, made in a thread that lives as long as the connection.

    Starting Ray takes seconds, in which the study is planned. Ray's helper processes die with the thread that started
    them, not with the process.
    """

    def __init__(self, connection: AbstractContextManager[bool], started: StartedRay | None = None) -> None:
        """Begins to enter ``connection``, whose value is whether it made a new connection, and returns at once.

        ``started`` is what it starts.
        """
        # Ray forks, and this module takes a lock around forks. If another thread imported it during a fork, it would
        # release a lock that it has not taken, and Python would print an error.
        import concurrent.futures.thread  # noqa: F401

        self._connection, self._started = connection, started
        self._error: Exception | None = None
        self._connected = threading.Event()
        self._ending = threading.Event()
        self.owned = False
        self._thread = threading.Thread(target=self._live, daemon=True, name="ray")
        self._thread.start()

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Waits until the process is connected.

        Raises:
            ExecutionError: Ray cannot be reached in time.
            InputError: Ray cannot be reached because of a wrong option.
        """
        if not self._connected.wait(timeout_seconds):
            self._ending.set()
            raise ExecutionError(f"Ray did not answer within {timeout_seconds:g} s")
        if isinstance(self._error, TunerError):
            raise self._error
        if self._error:
            raise ExecutionError(f"Ray did not start: {one_line(self._error)}") from self._error
        take_back()

    def stop(self) -> None:
        """Ends the connection and what was started for it, and waits for that. An earlier connection is kept.

        What we have started ourselves is killed if it does not end soon. Ray may wait for it for a minute then.
        """
        self._ending.set()
        if self._started is None:
            self._thread.join(STOP_SECONDS)
            return
        self._thread.join(OWN_STOP_SECONDS if self._connected.is_set() else 0)
        if self._thread.is_alive():
            self._started.end()
            why = sys.exc_info()[1]  # while a refused input ends the study
            atexit.register(self._leave, why.exit_code if isinstance(why, TunerError) else INTERRUPTED)

    def _leave(self, code: int) -> None:
        """Ends this process if the thread still waits for what was killed: Ray's own end would wait, too."""
        if self._thread.is_alive():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _live(self) -> None:
        try:
            with self._connection as self.owned:
                self._connected.set()
                self._ending.wait()
        except Exception as error:
            self._error = error
        self._connected.set()


@contextmanager
def local_ray(
    devices: Sequence[Device], variables: Mapping[str, str], started: StartedRay | None = None
) -> Iterator[bool]:
    """A Ray with these devices and variables, or the one to which this process is connected.

    What is started for it is kept in ``started``.
    """
    started = started or StartedRay()
    quiet()
    import ray

    if ray.is_initialized():
        yield False
        return
    with private_folder(usable_base()) as folder, authentication("token", secrets.token_hex(32)):
        started.folder = folder
        # Ray's processes inherit the variables, so the idle workers that Ray starts can be used. That saves half a
        # second for each.
        ours = {name: value for name, value in PROCESSES.items() if name not in os.environ}
        with environment({**ours, **variables, **_instances(devices)}), _small(started):
            ray.init(
                address="local",
                num_cpus=sum(device.cores for device in devices),
                num_gpus=sum(device.kind == "cuda" for device in devices),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _memory=sum(device.total_bytes for device in devices if device.kind == "cpu") or MB,
                _temp_dir=str(folder / TEMPORARY),
            )
        yield True
        ray.shutdown(wait_for_processes=True)  # they would make the folder again


def _instances(devices: Sequence[Device]) -> dict[str, str]:
    """Lists MIG instances for Ray, which uses no more GPUs than the variable names; 0 may stand for several."""
    if all(device.instance is None for device in devices):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices if device.uuid)}


def session_bases() -> list[Path]:
    """The folders that can hold a study's Ray, the best first."""
    return usable_bases(SOCKET_BYTES - len(LONGEST_SOCKET) - 1 - NAME_LENGTH)


def usable_base() -> Path:
    """The folder in which a study makes that of its Ray; an InputError is raised if there is none."""
    bases = session_bases()
    if not bases:
        raise InputError("no folder for Ray's sockets can be written: set RAY_TMPDIR to one with a short path")
    return bases[0]


@contextmanager
def authentication(mode: str, token: str = "") -> Iterator[None]:
    """Sets the authentication ``mode``, "token" or "disabled", of this process and of Ray's that start in the block.

    By default Ray finds the token. If only the driver required one, Ray's head could not reach it, would consider it
    dead and end its workers.
    """
    import ray

    def read_again() -> None:
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()

    try:
        with environment({AUTH_MODE: mode, **({AUTH_TOKEN: token} if token else {})}):
            read_again()
            yield
    finally:
        read_again()


def quiet() -> None:
    """Makes Ray quiet; call it before Ray is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's future default; without it, it warns.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", SKIPPED_LOGS)
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)  # in a notebook it asks for ipywidgets


@contextmanager
def _small(started: StartedRay) -> Iterator[None]:
    """A Ray that is started in this block listens on the loopback address alone, and has no services for people.

    The address is Ray's default on macOS and Windows. On Linux Ray takes another one even if given 127.0.0.1, unless
    a switch is off (``RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER``, read when Ray is imported).

    Ray starts a server for its dashboard, a reader of logs and an autoscaler even if no dashboard and no logs are
    asked for. Its workers wait for that server: without the three Ray starts in half the time.

    Its C++ library takes the signals for itself. They are given back at once.
    """
    import ray
    from ray._private import ray_constants, services
    from ray._private.node import Node

    replaced: list[tuple[Any, str, object]] = [(ray_constants, "ENABLE_RAY_CLUSTER", False)]
    replaced += [(Node, name, lambda *_, **__: None) for name in SERVICES]
    replaced += [(services, "ConsolePopen", started.start), (ray._raylet, "CoreWorker", _keeping_signals(started))]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _keeping_signals(started: StartedRay) -> Callable[..., object]:
    """Ray's class for its C++ library, which here leaves the handlers of signals as they are.

    Only the main thread can set Python's handlers, and this one is another.
    """
    import ray

    make = ray._raylet.CoreWorker
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.restype, put.restype, put.argtypes = ctypes.c_void_p, ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]

    def made(*arguments: object, **options: object) -> object:
        handlers = {int(number): get(int(number)) for number in SIGNALS}
        with started.joining:
            started.check()
            worker = make(*arguments, **options)
        for number, handler in handlers.items():
            put(number, handler)
        return worker

    return made


def join_cluster(address: str) -> RayConnection:
    """Connects this process to the cluster at "HOST:PORT" or "auto", and waits for that.

    Raises:
        InputError: no Ray answers there, it rejects this process, or the process is connected to another one.
        ExecutionError: joining takes too long.
    """
    connection = RayConnection(_joined(find_address(address)))
    try:
        connection.wait(PORT_SECONDS + ANSWER_SECONDS + CLUSTER_SECONDS)
    except KeyboardInterrupt:  # the caller cannot stop it
        connection.stop()
        raise
    return connection


def ray_folder() -> Path:
    """The folder of Ray's sessions on this machine."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"


def find_address(address: str) -> str:
    """The "HOST:PORT" of an address; "auto" is looked up where Ray's tools look."""
    if address == "auto":
        address, file = os.environ.get("RAY_ADDRESS", "auto"), ray_folder() / CURRENT_CLUSTER
        with suppress(OSError):
            address = file.read_text().strip() if address in ("", "auto", "local") else address
        if address in ("", "auto", "local"):
            missing = f"RAY_ADDRESS is not set, and there is no {file}"
            raise ParameterError("address", "auto", missing, "is Ray started here?")
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 2**16:
        rule = "not of the form HOST:PORT, such as 10.0.0.1:6379"
        if address == os.environ.get("RAY_ADDRESS"):
            raise InputError(f"RAY_ADDRESS={address}: {rule}: unset it, or give {option('address', 'local')}")
        raise ParameterError("address", address, rule)
    return address


def connected() -> str | None:
    """The address of the Ray to which this process is connected; None if there is none."""
    if "ray" not in sys.modules:
        return None
    import ray  # waits for a thread that still imports it

    return str(ray.get_runtime_context().gcs_address) if ray.is_initialized() else None


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
