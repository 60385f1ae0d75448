"""A forecast as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tuner.records.seed_statistics import some_names
from tuner.reporting.plan_text import DEVICES, plan_text
from tuner.reporting.texts import count_text, gb_of_ranks, rough
from tuner.trial import GB, Device

if TYPE_CHECKING:
    from tuner.api.plan import Forecast

FIRST = 5  # so many of the trials that start together on a device are named


def forecast_text(forecast: Forecast) -> str:
    """The plan, what each device would do, and what the packing gains."""
    plan = forecast.plan
    seconds = forecast.schedule.seconds if forecast.measured else None
    lines = [plan_text(plan, forecast.requests, forecast.data, forecast.sized.text, seconds)]
    lines += [f"{'search':<10} {forecast.searched}"] if forecast.searched else []
    lines += forecast.left_out
    lines += [
        f"{'first':<10} {request.trial.name} is trained, once and alone: {request.need_bytes / GB:.2f} GB"
        for request in forecast.first
    ]
    busy = [_device_line(forecast, device) for device in plan.devices[:DEVICES]]
    lines += [f"{'schedule':<10}{line.removeprefix(' ' * 10)}" if line is busy[0] else line for line in busy]
    if len(plan.devices) > DEVICES:
        lines.append(f"{'':<10} and {len(plan.devices) - DEVICES} more devices")
    return "\n".join([*lines, _gain_line(forecast)])


def _device_line(forecast: Forecast, device: Device) -> str:
    plan, schedule = forecast.plan, forecast.schedule
    budget = plan.budgets[plan.devices.index(device)]
    here = schedule.by_device[device]
    ranks = Counter(placement.trial.trial_id for placement, *_ in here)
    each = {placement.trial.trial_id: placement for placement, start, _ in here if start == 0}
    first = [f"{forecast.title(p.trial)} {gb_of_ranks(ranks[name], p.limit_bytes)}" for name, p in each.items()]
    began = f"; first {some_names(first, FIRST)}" if first else ""
    trials = f"{count_text(len(ranks), 'trial')}, up to {schedule.most_at_once(device)} at once"
    return f"{'':<10} {device.label}: {trials}, memory {schedule.busy(device, budget):.0%} used{began}"


def _gain_line(forecast: Forecast) -> str:
    took, alone, uniform = forecast.schedule.seconds, forecast.one_by_one, forecast.uniform
    after = f" ({rough(alone)})" if forecast.measured else ""
    gain = f"{alone / took:.1f} times as fast as one after another{after}"
    gain += f", {uniform / took:.2f} times as fast as uniform packing" if forecast.plan.packing == "per-trial" else ""
    if forecast.measured:
        return f"{'packing':<10} {gain}"
    return f"{'packing':<10} {gain}, if time grows with epochs and memory; --like DIR takes it from a study's trials"
