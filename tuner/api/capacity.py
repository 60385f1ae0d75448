"""Plans a study for cards of given sizes: the workers of each card, and the changes with which other trials fit."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from tuner.decisions.plan import Packing, budget_bytes
from tuner.errors import InputError, ParameterError
from tuner.machine.devices import imagined_gpu
from tuner.spec.settings import Settings
from tuner.study.needs import Needs, check_amp
from tuner.study.planning import plan_requests
from tuner.trial import (
    ACCUMULATION,
    CHECKPOINTING,
    GB,
    MOST_GB,
    Config,
    Configuration,
    ConfigValue,
    Device,
    Request,
    Trial,
    title,
)
from tuner.workloads.base import Trainable, numeric_hyperparameter
from tuner.workloads.micro_batches import halved
from tuner.workloads.task import Selection, Tasks, describe

SWITCHES = ("amp", CHECKPOINTING)
SOUGHT = 5  # the number of a card's largest misfits for which a change is looked for

Fits = Callable[[Config], bool]


@dataclass(frozen=True)
class Misfit:
    """A configuration that does not fit a card."""

    name: str
    need_bytes: int
    card_bytes: int  # the smallest card that would hold it as it is, buffer included
    sought: bool  # whether a change was looked for
    change: Config | None = None  # the hyperparameters to set, so that it fits at the lowest cost; None without such
    changed_need_bytes: int | None = None  # the predicted need with the change


@dataclass(frozen=True)
class Card:
    """The plan of a study for one card."""

    card_bytes: int
    budget_bytes: int  # the memory that trials share: total - buffer
    # The trials that run at once. With uniform packing, each counts as the largest footprint, and their number is not
    # limited by the study's.
    workers: int
    workers_at_least: int  # the same, whichever trials they are
    footprint_bytes: int  # the largest need among the configurations that fit; 0 where none does
    fitting: int  # how many of them fit
    misfits: tuple[Misfit, ...]  # the others, the largest first


@dataclass(frozen=True)
class Capacity:
    """The plan of a study for several cards."""

    cards: tuple[Card, ...]  # in the order in which they were asked for
    requests: Sequence[Request]  # the study's trials, with what each needs
    data: str  # the data sets in a few words, a line for each
    packing: Packing  # "uniform" or "per-trial"
    buffer_bytes: int  # the memory of each card that stays free


def card_sizes(gpu: str | Sequence[float]) -> list[int]:
    """The cards' sizes in bytes, from GB: numbers, or a text of numbers with commas between them.

    Raises:
        ParameterError: there is none, or one of them is not a number above 0 and up to ``MOST_GB``.
    """
    try:
        listed: Sequence[str | float] = gpu.split(",") if isinstance(gpu, str) else list(gpu)
        sizes = [math.nan if isinstance(size, bool) else float(size) for size in listed]
    except (TypeError, ValueError, OverflowError):
        sizes = []
    if not sizes or not all(0 < size <= MOST_GB for size in sizes):
        rule = f"must be sizes in GB above 0 and at most {MOST_GB:,}, such as 8,16,24"
        raise ParameterError("gpu", gpu, rule)
    return [int(size * GB) for size in sizes]


def capacity(tasks: Tasks, trials: Sequence[Trial], sizes: Sequence[int], settings: Settings) -> Capacity:
    """Plans a study for cards of these sizes. Estimates do not depend on the card, so they are made once."""
    needs = Needs(tasks, [imagined_gpu(sizes[0])], settings)
    requests = needs.of(trials).requests
    return Capacity(
        cards=tuple(_card(imagined_gpu(size), requests, needs) for size in sizes),
        requests=requests,
        data=describe(tasks),
        packing=settings.packing_used,
        buffer_bytes=settings.buffer_bytes,
    )


def _card(device: Device, requests: Sequence[Request], needs: Needs) -> Card:
    settings = needs.settings
    budget = budget_bytes(device, settings.buffer_bytes)
    there = Needs(needs.tasks, [device], settings)
    served = [there.within(request) for request in requests]
    fitting = [request for request in served if request.need_bytes <= budget]
    large = sorted((request for request in served if request.need_bytes > budget), key=lambda r: -r.need_bytes)
    workers = at_least = footprint = 0
    if fitting:
        plan, _ = plan_requests(there, fitting)
        most = min(plan.fits[0], settings.max_workers or plan.fits[0])
        workers, at_least = (most, most) if plan.packing == "uniform" else (plan.workers, plan.guaranteed)
        footprint = plan.footprint_bytes
    return Card(
        card_bytes=device.total_bytes,
        budget_bytes=budget,
        workers=workers,
        workers_at_least=at_least,
        footprint_bytes=footprint,
        fitting=len(fitting),
        misfits=tuple(
            _misfit(request, needs, there, settings.estimates_memory and place < SOUGHT)
            for place, request in enumerate(large)
        ),
    )


def _misfit(request: Request, needs: Needs, there: Needs, seek: bool) -> Misfit:
    trial, task = request.trial, needs.tasks[request.trial.workload]

    def need_bytes(config: Config) -> int:
        """What the trial would be given there with another configuration."""
        (changed,) = needs.of([replace(trial, config=config)]).requests
        return there.within(changed).need_bytes

    config = None
    if seek:

        def fits(config: Config) -> bool:
            return need_bytes(config) <= there.limits.device_bytes

        config = cheapest_change(task.workload, trial.config, fits, partial(_allowed, needs.tasks, trial))
    return Misfit(
        name=title(trial.workload, trial.name, several=len(needs.tasks) > 1),
        need_bytes=request.need_bytes,
        card_bytes=request.estimate.least_bytes + needs.settings.buffer_bytes,
        sought=seek,
        change=None if config is None else _difference(trial.config, config),
        changed_need_bytes=None if config is None else need_bytes(config),
    )


def _allowed(tasks: Tasks, trial: Trial, config: Config) -> bool:
    """Whether a study would take this configuration."""
    task = tasks[trial.workload]
    try:
        Selection(task.workload, lambda: task.data, [Configuration(trial.name, config)])
        check_amp(tasks, [replace(trial, config=config)], [imagined_gpu(GB)])
    except InputError:
        return False
    return True


def cheapest_change(workload: Trainable, config: Config, fits: Fits, allowed: Fits) -> Config | None:
    """The cheapest change of a configuration with which it fits, or None.

    Micro-batches come first, which leave the results as they are; then mixed precision, gradient checkpointing, and
    these with micro-batches; a smaller batch, which is another training, comes last.
    """
    switches = [key for key in SWITCHES if not config.get(key) and allowed({**config, key: 1})]
    singles: list[Config] = [{**config, key: 1} for key in switches]
    both: Config = {**config, **dict.fromkeys(switches, 1)}
    lean = {**config, CHECKPOINTING: 1} if CHECKPOINTING in switches else config
    # A batch of one needs no more than micro-batches of one. Mixed precision may need more than it saves there: it
    # copies weights.
    if not any(fits(_smaller(workload, change)[-1]) for change in (both, lean)):
        return None
    ways: list[list[Config]] = [_accumulated(workload, config), *([single] for single in singles)]
    ways += [_accumulated(workload, single) for single in reversed(singles)]  # first the one that changes no results
    ways += [[both, *_accumulated(workload, both)]]
    ways += [_smaller(workload, change) for change in (config, *reversed(singles), both)]
    for way in ways:
        if way and fits(way[-1]):
            return way[bisect_left(range(len(way)), True, key=lambda place: fits(way[place]))]
    return None


def _accumulated(workload: Trainable, config: Config) -> list[Config]:
    """The configuration in smaller and smaller micro-batches."""
    configs = []
    changed = halved(workload, config)
    while changed is not None:
        configs.append(changed)
        changed = halved(workload, changed)
    return configs


def _smaller(workload: Trainable, config: Config) -> list[Config]:
    """The configuration, and with a batch, in one piece, of half the size again and again."""
    configs: list[Config] = [config]
    key = workload.memory_scales_with
    alone = {**config, ACCUMULATION: 1} if ACCUMULATION in config else config
    while key is not None and int(configs[-1][key]) // 2 >= numeric_hyperparameter(workload, key).low:
        configs.append({**alone, key: int(configs[-1][key]) // 2})
    return configs


def _difference(before: Config, after: Config) -> dict[str, ConfigValue]:
    return {key: value for key, value in after.items() if before.get(key) != value}


def to_record(planned: Capacity) -> dict[str, object]:
    """The capacity as plain values, in GB."""
    return {
        "packing": planned.packing,
        "buffer_gb": round(planned.buffer_bytes / GB, 4),
        "trials": len(planned.requests),
        "largest_footprint_gb": round(max(request.need_bytes for request in planned.requests) / GB, 4),
        "cards": [_record(asdict(card)) for card in planned.cards],
    }


def _record(fields: Mapping[str, object]) -> dict[str, object]:
    """Fields as plain values, with sizes in GB instead of bytes."""
    plain: dict[str, object] = {}
    for name, value in fields.items():
        if name.endswith("_bytes"):
            plain[f"{name.removesuffix('_bytes')}_gb"] = round(value / GB, 4) if isinstance(value, int) else None
        else:
            plain[name] = [_record(inner) for inner in value] if isinstance(value, tuple) else value
    return plain
