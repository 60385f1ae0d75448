"""Checks a choice by real steps on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tuner.errors import InputError, option
from tuner.estimation.measure import measure
from tuner.estimation.overheads import RAY_BYTES
from tuner.sizing.choices import Chosen, Goal
from tuner.sizing.workload_sizing import Predictor, batch_key, in_batches, size_configuration
from tuner.trial import GB, Config, MemoryEstimate
from tuner.workloads.base import needs_workload

ROUNDS = 3
NEARLY = 1.03  # the batch must grow by more than this factor to be worth another round


def profiled(predictor: Predictor, config: Config, goal: Goal, chosen: Chosen) -> tuple[Chosen, list[str]]:
    """Measures real steps, corrects the predictions, and chooses again.

    The prediction's error is added to other predictions in proportion to their reserved bytes. A choice is final if
    its steps fit and the corrected batch is at most ``NEARLY`` times as large.

    Returns:
        The largest choice whose steps fit, with its measured memory, and a line for each round.

    Raises:
        InputError: no batch fits by the measurements, or steps do not fit after ``ROUNDS``.
        ExecutionError: a step failed.
    """
    name, notes, best, too_large = chosen.name, list[str](), None, math.inf
    for _ in range(ROUNDS):
        took = _measured_bytes(predictor, config, chosen)
        fits = took <= goal.limit_bytes
        over = "" if fits else f", and {goal.limit_bytes / GB:.2f} GB is the limit: chosen anew"
        predicted = f"{chosen.need_bytes / GB:.2f} GB predicted"
        notes.append(f"{name}: a batch of {chosen.batch_size} took {took / GB:.2f} GB, {predicted}{over}")
        if not fits:
            too_large = min(too_large, chosen.batch_size)
        elif best is None or chosen.batch_size > best.batch_size:
            best = replace(chosen, measured_bytes=took)
        guess = predictor.estimate(config, chosen.batch_size, chosen.accumulation)
        chosen = size_configuration(predictor, name, config, goal, _corrected(guess, took))
        if best is not None and not NEARLY * best.batch_size < chosen.batch_size < too_large:
            return best, notes
    if best is not None:
        return best, notes
    raise InputError(
        f"after {ROUNDS} rounds of {option('profile', True)}: {'; '.join(notes)}: lower {option('safety_margin')}"
    )


def _corrected(guess: MemoryEstimate, took_bytes: int) -> Callable[[MemoryEstimate], int]:
    share = (took_bytes - guess.total_bytes) / max(1, guess.reserved_bytes)
    return lambda other: other.total_bytes + int(share * other.reserved_bytes)


def _measured_bytes(predictor: Predictor, config: Config, chosen: Chosen) -> int:
    task, device = predictor.task, predictor.device
    sizes = chosen.batch_size, chosen.accumulation
    whole = in_batches(config, batch_key(task), *sizes)
    measured = measure(
        needs_workload(task.workload, "a measured step"),
        whole,
        task.data,
        device,
        predictor.service.expandable_segments,
    )
    return measured.peak_bytes + (RAY_BYTES if device.kind == "cpu" else 0)
