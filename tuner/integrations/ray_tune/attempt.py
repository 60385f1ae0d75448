"""A trial's attempt in a process of Tune: its memory cap, its peak, and its retry after running out of memory."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from tuner.decisions.capacity import TrialLimits
from tuner.decisions.plan import Plan, make_plan
from tuner.decisions.retry import RetryPolicy, next_attempt
from tuner.errors import ExecutionError, InputError
from tuner.execution.device_arbiter import DeviceArbiter
from tuner.integrations.ray_tune.resources import RunAgain, TrialResources
from tuner.machine.caps import STACK_BYTES, capped, is_out_of_memory, lack_of_memory
from tuner.machine.devices import detect_devices, pin
from tuner.machine.first_use import load_early
from tuner.machine.peak import PeakMeter
from tuner.trial import GB, AttemptResult, Placement

WAIT_SECONDS = 0.5  # between two looks at what others hold


class CappedAttempt:
    """Caps a trial at its memory share, and retries it if it runs out of memory."""

    def __init__(
        self,
        resources: TrialResources,
        policy: RetryPolicy,
        *,
        caps: bool,
        trainable: type | None = None,
        make_arbiter: Callable[[str, Plan], DeviceArbiter] = DeviceArbiter,
    ) -> None:
        """Measures the process after a first step and the trainable's imports.

        A missing device raises ``InputError``.
        """
        self._resources = resources
        self._policy = policy
        self._postponed: BaseException | None = None
        self._share = DeviceArbiter()
        if resources.budget is None:
            self._postponed = InputError(resources.refusal)
            return
        from tuner.training.rehearsal import warm_up

        kind = resources.budget.kind
        device = detect_devices(kind)[0]
        self._device = replace(device, free_bytes=device.total_bytes)  # what others hold is looked at as it is needed
        pin(self._device)  # Ray gives its number by NVML, and CUDA may count GPUs that differ otherwise

        def load() -> None:
            warm_up("cuda:0" if kind == "cuda" else "cpu")
            load_early(trainable)

        self._meter = PeakMeter(self._device, load, host=False)
        self._cap_bytes = resources.request.need_bytes - self._meter.context_bytes if caps else None
        if self._cap_bytes is not None and self._cap_bytes <= 0:
            self._postponed = MemoryError(
                f"its process takes {self._meter.context_bytes / GB:.2f} GB before the trial's first tensor"
            )
        # A function runs in a thread of its own with OpenMP threads of its own: libgomp ends a process without them.
        self._stacks_bytes = STACK_BYTES * (1 + _cpu_threads())
        plan = make_plan([self._device], [1], packing="uniform", buffer_bytes=0)
        self._share = make_arbiter(f"{resources.request.trial.workload} in Ray Tune", plan)
        self._meter.start()

    @property
    def has_failed(self) -> bool:
        """Whether an error was postponed."""
        return self._postponed is not None

    @contextmanager
    def postponing(self) -> Iterator[None]:
        """Postpones an out-of-memory error to the next ``computing``, as Tune does not retry a failed setup."""
        try:
            with self._capped():
                yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._postponed = error

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Caps the memory of a block. If it runs out of memory and can be retried, ``RunAgain`` is raised."""
        try:
            if self._postponed is not None:
                raise self._postponed
            with self._capped():
                yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._run_again(error)
            raise

    def wait_for_room(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Waits until studies and other programs leave the trial its memory, and leases it.

        If programs that are no studies hold it for ``GIVEN_UP_SECONDS``, the trial fails.
        """
        placement = self._placement()
        while not self._wait_once(placement):
            sleep(WAIT_SECONDS)

    def _wait_once(self, placement: Placement) -> bool:
        """Whether the wait is over, for good or ill."""
        share, request = self._share, self._resources.request
        assert self._resources.budget is not None
        with share.placing([]) as bounds:
            room = bounds.rooms.get(self._device)
            whole = request.need_bytes >= self._resources.budget.budget_bytes  # of what was free before Ray started
            if room is None or room >= placement.limit_bytes or (whole and share.has_alone(self._device)):
                share.reserve([placement])
                return True
            wait = share.wait((request, self._device), placed=False)
        if wait.text:
            print(f"tuner: {wait.text}", flush=True)
        if wait.given_up:
            self._postponed = ExecutionError(wait.given_up)
        return bool(wait.given_up)

    def close(self) -> None:
        """Ends the lease."""
        self._share.close()

    def _placement(self) -> Placement:
        request = self._resources.request
        trial = replace(request.trial, trial_id=self._resources.resources_id)
        return Placement(trial, request.estimate, self._device, self._resources.fraction, request.need_bytes, 1)

    def figures(self) -> dict[str, float]:
        """Figures for the trial's results, named as the columns of ``results.csv``."""
        request, peak = self._resources.request, self._meter.peak_bytes()
        columns = {
            "attempts": request.trial.attempt,
            "gpu_fraction": round(self._resources.fraction, 4),
            "estimated_memory_gb": round(request.estimate.total_bytes / GB, 3),
        }
        return columns if peak is None else columns | {"peak_memory_gb": round(peak / GB, 3)}

    def _capped(self) -> AbstractContextManager[None]:
        if self._cap_bytes is None:
            return nullcontext()
        return capped(self._device, self._cap_bytes, self._meter.base_bytes + self._stacks_bytes)

    def _run_again(self, error: BaseException) -> None:
        """Makes Tune run the trial again; if there is no further attempt, adds a note to the error."""
        resources, request = self._resources, self._resources.request
        assert resources.budget is not None
        had = f"out of memory in attempt {request.trial.attempt}, which had {request.need_bytes / GB:.2f} GB"
        lack = lack_of_memory(error)
        starved = lack is not None and lack.within(request.need_bytes - self._meter.context_bytes)
        retry = next_attempt(
            request,
            AttemptResult("out_of_memory", "memory" if starved else "", request.need_bytes, self._meter.peak_bytes()),
            self._policy,
            limits=TrialLimits(resources.budget.budget_bytes),
            smaller=lambda *_: None,
            random=random.random,
        )
        if retry is None:
            note = f"tuner: {had} of {resources.budget.budget_bytes / GB:.2f} GB; no retry is left"
            _origin(error).add_note(note)
            return
        more = f"{had}: runs again with {retry.request.need_bytes / GB:.2f} GB"
        raise RunAgain(resources.resources_id, retry.request, more) from error


def _origin(error: BaseException) -> BaseException:
    """The first cause of an error, which is the only one that Tune shows for functions."""
    return error if error.__cause__ is None else _origin(error.__cause__)


def _cpu_threads() -> int:
    import torch

    return torch.get_num_threads()
