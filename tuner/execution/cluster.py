"""Ray for one study: started in the background while the study is planned, and ended with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from tuner.errors import ExecutionError
from tuner.trial import MB, Device

OBJECT_STORE_BYTES = 256 * MB  # enough for the data sets' arrays; /dev/shm is small in many containers
STOP_SECONDS = 30


class LocalRay:
    """A Ray of this study's own, or the one that this process has already joined.

    Starting takes seconds, so it happens in a thread. That thread then waits for the end: Ray's helper processes
    die with the thread that started them, not with the process.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        """Begins to start Ray with these devices, and returns at once."""
        self._error: Exception | None = None
        self._owned = False
        self._started = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, args=(tuple(devices),), daemon=True, name="ray")
        self._thread.start()

    def wait(self) -> None:
        """Waits until Ray is ready.

        Raises:
            ExecutionError: it did not start.
        """
        self._started.wait()
        if self._error:
            raise ExecutionError(f"Ray did not start: {' '.join(str(self._error).split())}") from self._error

    def stop(self) -> bool:
        """Ends Ray and waits for that; a Ray that was not started here is left alone, and False returned."""
        self._ending.set()
        self._thread.join(STOP_SECONDS)
        return self._owned

    def _live(self, devices: tuple[Device, ...]) -> None:
        try:
            self._start(devices)
        except Exception as error:
            self._error = error
        self._started.set()
        self._ending.wait()
        if self._owned:
            import ray

            ray.shutdown()

    def _start(self, devices: tuple[Device, ...]) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's future default; without it, it warns.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        if ray.is_initialized():
            return
        self._owned = True
        # Ray listens on every interface, and lets nobody in without the token that it makes for a local cluster.
        ray.init(
            address="local",
            num_cpus=sum(device.cores for device in devices),
            num_gpus=sum(device.kind == "cuda" for device in devices),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _memory=sum(device.total_bytes for device in devices if device.kind == "cpu") or MB,
        )
