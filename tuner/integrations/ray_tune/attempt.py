"""A trial's attempt in the process that Tune gave it: its cap, what it took, and what follows if it was too much."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from tuner.errors import InputError
from tuner.integrations.ray_tune.share import RunAgain, Share
from tuner.machine.caps import capped, is_out_of_memory
from tuner.machine.devices import detect_devices
from tuner.machine.peak import PeakMeter
from tuner.placement.retry import RetryPolicy, next_attempt
from tuner.trial import GB, AttemptResult, Device

WAIT_SECONDS = 0.5  # between two looks at what is free


class Attempt:
    """Holds a trial's code to the trial's share, and turns running out of memory into another attempt."""

    def __init__(self, share: Share, policy: RetryPolicy, *, caps: bool) -> None:
        """Takes the process's base, with torch loaded and a first step taken.

        Args:
            share: this attempt's.
            policy: when there is another.
            caps: end a trial that takes more than its share.

        Raises:
            InputError: the process has not the device that the share is of.
        """
        self._share = share
        self._policy = policy
        self._postponed: BaseException | None = None
        if share.budget is None:
            self._postponed = InputError(share.refusal)
            return
        from tuner.training.loop import warm_up

        kind = share.budget.kind
        self._device = detect_devices(kind)[0]
        self._meter = PeakMeter(self._device, partial(warm_up, "cuda:0" if kind == "cuda" else "cpu"))
        self._cap_bytes = share.request.need_bytes - self._meter.context_bytes if caps else None
        if self._cap_bytes is not None and self._cap_bytes <= 0:
            self._postponed = MemoryError(
                f"its process takes {self._meter.context_bytes / GB:.2f} GB before the trial's first tensor"
            )
        self._meter.start()

    @property
    def has_failed(self) -> bool:
        """Whether something was postponed."""
        return self._postponed is not None

    @contextmanager
    def postponing(self) -> Iterator[None]:
        """A block in which running out of memory is not raised, but by the next ``computing``.

        Of an error in a trial's set-up Tune has another idea: it gives the trial up.
        """
        try:
            with self._capped():
                yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._postponed = error

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A block that is held to the cap.

        Raises:
            RunAgain: it ran out of memory, and is to be run again with more. Otherwise what it raised itself.
        """
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
        """Waits until what is to be taken is free, but no longer than the attempt's delay; a first one has none.

        So a retry backs off only while others have its memory.
        """
        end = time.monotonic() + self._share.delay_seconds
        still_to_be_taken = self._share.request.need_bytes - self._meter.context_bytes
        while time.monotonic() < end and _free_bytes(self._device) < still_to_be_taken:
            sleep(WAIT_SECONDS)
        self._share.delay_seconds = 0.0

    def figures(self) -> dict[str, Any]:
        """What is added to the trial's results, under the names that columns of ``results.csv`` have."""
        request, peak = self._share.request, self._meter.peak_bytes()
        found = {
            "attempts": request.trial.attempt,
            "gpu_fraction": round(self._share.fraction, 4),
            "estimated_memory_gb": round(request.estimate.total_bytes / GB, 3),
        }
        return found if peak is None else found | {"peak_memory_gb": round(peak / GB, 3)}

    def _capped(self) -> Any:
        if self._cap_bytes is None:
            return nullcontext()
        return capped(self._device, self._cap_bytes, self._meter.base_bytes)

    def _run_again(self, error: BaseException) -> None:
        """Raises what makes Tune run the trial again; if it is not to, notes on the error what it had."""
        share, request = self._share, self._share.request
        assert share.budget is not None
        had = f"out of memory in attempt {request.trial.attempt}, which had {request.need_bytes / GB:.2f} GB"
        retry = next_attempt(
            request,
            AttemptResult("out_of_memory", limit_bytes=request.need_bytes, peak_bytes=self._meter.peak_bytes()),
            self._policy,
            whole_bytes=share.budget.budget_bytes,
            accumulated=lambda _: None,
            random=random.random,
        )
        if retry is None:
            note = f"tuner: {had} of {share.budget.budget_bytes / GB:.2f} GB, and is not tried again"
            _origin(error).add_note(note)
            return
        more = f"{had}: runs again with {retry.request.need_bytes / GB:.2f} GB"
        raise RunAgain(share.share_id, retry.request, retry.delay_seconds, more) from error


def _origin(error: BaseException) -> BaseException:
    """What an error came from: of a function's, Tune shows that alone."""
    return error if error.__cause__ is None else _origin(error.__cause__)


def _free_bytes(device: Device) -> int:
    return detect_devices(device.kind)[0].free_bytes
