"""The cells of ``trials_per_hour``: which there are, how long they take, and what is read off their trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Literal

Way = Literal["fresh", "warm", "ray-tune", "ours"]
WAYS: tuple[Way, ...] = ("fresh", "warm", "ray-tune", "ours")
MAIN = "graphsage-64x2"  # the model of the bars, which is measured in every way
GRAPHS = "cuda_graphs"  # the lever that a trial has without tuner's study, too
ADAPTIVE = "adaptive_workers"
OTHERS_WORKERS = 8  # of the other models
TRIAL_SECONDS = (1.0, 5.0)  # the shortest and the longest trial, one by one and warm
SHARE = 0.9  # of the time is planned for
STARTED_RAY = 8.0  # seconds until Ray is there, once
FRESH_RATIO, RAY_RATIO = 8.0, 3.0  # trials an hour of the best of ours over those ways
MOST_DIFFERENCE = 0.01  # of the metric's mean over the same seeds
MOST_ERROR = 0.05  # of an estimate, as a share of what was reserved


@dataclass(frozen=True)
class Cell:
    """One measurement: a model, trained so often in this way.

    ``workers`` is the number of trials at once, which for Ray Tune is 1 / the GPU's fraction. It is 0 for Ray Tune
    with the fraction that was the best for the main model.
    """

    model: str
    way: Way
    workers: int
    trials: int
    levers: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The way in words."""
        names = {"fresh": "one by one, fresh processes", "warm": "one by one, warm", "ours": "tuner"}
        if self.way == "ray-tune":
            return f"Ray Tune, 1/{self.workers} GPU" if self.workers else "Ray Tune, best fraction"
        return names[self.way] + "".join(f" + {lever}" for lever in self.levers)


@dataclass(frozen=True)
class Timed:
    """How long a model takes in a warm process, in seconds."""

    epoch: float
    beside: float  # a trial's model, its move to the device and its test, beside its epochs


@dataclass(frozen=True)
class Trial:
    """What is known of a trial. Times are unix seconds; ``epochs`` begins with that at which training began."""

    seed: int
    epochs: tuple[float, ...]
    ended: float
    value: float | None  # of the metric that is compared
    reserved_bytes: float | None = None  # the allocator's peak
    estimated_bytes: int | None = None  # what of it was expected before any calibration


@dataclass(frozen=True)
class Sample:
    """The GPU at a moment: the share of time in which a kernel ran, watts, and joules since the driver started."""

    at: float
    busy: float | None
    watts: float | None
    joules: float | None


@dataclass(frozen=True)
class Measured:
    """What a cell came to. None stands for what could not be measured."""

    cell: Cell
    state: Literal["measured", "cut short", "failed", "not run"] = "not run"
    trials_an_hour: float | None = None
    window_seconds: float = 0.0  # in which they were counted
    wall_seconds: float = 0.0  # of the whole cell, with what it starts
    busy: float | None = None
    joules: float | None = None  # of a trial
    joules_by: str = ""  # "counter", or "power" where it was integrated
    value: float | None = None  # the metric's mean
    workers: int = 0  # that the plan gave
    lost: int = 0
    ran_out: int = 0  # attempts that ran out of memory
    estimate_off: float | None = None  # the largest error of an estimate, as a share of what was reserved
    note: str = ""
    trials: tuple[Trial, ...] = field(default=(), repr=False)


def trials_at(workers: int) -> int:
    """StudyStopping for a while in which all workers are busy, and fewer for each where they are many."""
    return workers * (3 if workers < OTHERS_WORKERS else 2)


def main_of(models: Sequence[str]) -> str:
    """The model that is measured in every way."""
    return MAIN if MAIN in models else models[0]


def best_fraction(cells: Sequence[Measured], model: str) -> int | None:
    """The number of workers with which Ray Tune trained most of a model; None if it has not."""
    tried = [row for row in cells if row.cell.way == "ray-tune" and row.cell.model == model]
    speeds = {row.workers: row.trials_an_hour for row in tried if row.trials_an_hour}
    return max(speeds, key=lambda workers: speeds[workers], default=None)


def plan(
    models: Sequence[str], ways: Sequence[Way], workers: Sequence[int], levers: Mapping[str, Sequence[str]]
) -> list[Cell]:
    """All cells, the most important first. ``levers`` has those that have an effect, by model."""
    main = main_of(models)
    others = [model for model in models if model != main]
    counts = sorted(set(workers))
    top = counts[-1]
    few = max((count for count in counts if count <= OTHERS_WORKERS), default=counts[0])
    cells = [Cell(main, "fresh", 1, 3), *(Cell(model, "warm", 1, 6 if model == main else 3) for model in models)]
    cells += [Cell(model, "warm", 1, 3, (GRAPHS,)) for model in models if GRAPHS in levers[model]]
    cells += [Cell(main, "ours", top, trials_at(top))]
    cells += [Cell(main, "ray-tune", count, trials_at(count)) for count in reversed(counts) if count > 1]
    with_levers = levers[main] if len(levers[main]) > 1 else ()
    cells += [Cell(main, "ours", top, trials_at(top), tuple(chosen)) for chosen in [with_levers] if chosen]
    cells += [Cell(main, "ours", top, trials_at(top), (lever,)) for lever in levers[main]]
    cells += [Cell(main, "ours", count, trials_at(count)) for count in reversed(counts[:-1])]
    for model in others:
        cells += [Cell(model, "fresh", 1, 2), Cell(model, "ours", few, trials_at(few))]
        cells += [Cell(model, "ray-tune", 0, trials_at(few))] if top > 1 else []
    cells += [Cell(model, "ours", few, trials_at(few), tuple(levers[model])) for model in others if levers[model]]
    if GRAPHS in levers[main] and top > 1:
        cells.append(Cell(main, "ours", 1, trials_at(1), (GRAPHS,)))
    cells += [Cell(model, "ours", count, trials_at(count)) for model in others for count in counts if count != few]
    # Workers that are added take a while to start.
    cells = [replace(cell, trials=2 * cell.trials) if ADAPTIVE in cell.levers else cell for cell in cells]
    return [cell for cell in cells if cell.way in ways]


def trial_seconds(timed: Timed, epochs: int) -> float:
    return timed.beside + epochs * timed.epoch


def epochs_of(timed: Timed, seconds: float) -> int:
    """The number of epochs with which a trial takes about so long."""
    return max(1, round((seconds - timed.beside) / timed.epoch))


def predicted_seconds(cell: Cell, trial: float, start: float, cores: int) -> float:
    """The time of a cell whose trials take ``trial`` seconds alone, where a process takes ``start`` to be ready."""
    if cell.way == "warm":
        return cell.trials * trial
    if cell.way == "fresh":
        return cell.trials * (start + trial)
    workers = cell.workers or OTHERS_WORKERS
    # Sixteen processes that take turns on a GPU do three to four times what one does.
    speedup = 1 + 0.6 * math.log2(min(workers, cores))
    starts = start * max(1.0, workers / cores) + 0.5 * workers  # contexts are made one after another
    return 2.0 + starts + cell.trials * trial / speedup


def choose_epochs(
    cells: Sequence[Cell], timed: Mapping[str, Timed], start: float, seconds: float, cores: int
) -> dict[str, int]:
    """Each model's epochs: trials as long as possible within TRIAL_SECONDS, so that all cells fit into the time."""
    longest, shortest = int(10 * TRIAL_SECONDS[1]), int(10 * TRIAL_SECONDS[0])
    for tenths in range(longest, shortest - 1, -1):
        epochs = {model: epochs_of(parts, tenths / 10) for model, parts in timed.items()}
        needed = STARTED_RAY + sum(
            predicted_seconds(cell, trial_seconds(timed[cell.model], epochs[cell.model]), start, cores)
            for cell in cells
        )
        if needed <= SHARE * seconds:
            break
    return epochs


def progress(trial: Trial, at: float) -> float:
    """The epochs that a trial had done at a moment, with parts of the running one."""
    done = 0.0
    for begin, end in zip(trial.epochs, trial.epochs[1:], strict=False):
        done += 1.0 if end <= at else (at - begin) / (end - begin) if begin < at else 0.0
    return done


def window(trials: Sequence[Trial], workers: int) -> tuple[float, float]:
    """From when to when a cell's trials are counted: while trials wait for one of the busy workers.

    It begins with the training of as many trials as there are workers, and ends with that of the last one. So
    neither the start of workers counts, nor that some have nothing to do at the end. One by one, it is from the first
    start to the last end.
    """
    begins = sorted(trial.epochs[0] for trial in trials)
    if workers == 1 or len(begins) <= workers:
        return begins[0], max(trial.ended for trial in trials)
    return begins[workers - 1], begins[-1]


def rate(trials: Sequence[Trial], between: tuple[float, float], epochs: int) -> float | None:
    """Trials a second: the epochs done in the window, over those of a trial. None if there was no time."""
    begin, end = between
    if end <= begin:
        return None
    done = sum(progress(trial, end) - progress(trial, begin) for trial in trials)
    return done / epochs / (end - begin)


def usage(samples: Sequence[Sample], between: tuple[float, float]) -> tuple[float | None, float | None, str]:
    """The mean share of busy time, and the joules in the window with what they were measured by."""
    begin, end = between
    within = [sample for sample in samples if begin <= sample.at <= end]
    shares = [sample.busy for sample in within if sample.busy is not None]
    busy = mean(shares) if shares else None
    counted = [(sample.at, sample.joules) for sample in within if sample.joules is not None]
    if len(counted) > 1:  # the window is a little longer than between its first and its last sample
        (first, least), (last, most) = counted[0], counted[-1]
        return busy, (most - least) * (end - begin) / (last - first), "counter"
    watts = [sample.watts for sample in within if sample.watts is not None]
    return (busy, mean(watts) * (end - begin), "power") if watts else (busy, None, "")


def estimate_off(trials: Sequence[Trial]) -> float | None:
    """The largest error of an estimate, as a share of what was reserved; None without estimates or a GPU."""
    pairs = [(trial.estimated_bytes, trial.reserved_bytes) for trial in trials]
    errors = [estimated / reserved - 1 for estimated, reserved in pairs if estimated and reserved]
    return max(errors, key=abs, default=None)


def measured(
    empty: Measured, trials: Sequence[Trial], epochs: int, samples: Sequence[Sample], wall_seconds: float
) -> Measured:
    """What is read off a cell's completed trials; ``empty`` has what is counted otherwise."""
    result = replace(empty, trials=tuple(trials), wall_seconds=wall_seconds)
    if not trials:
        return replace(result, state="failed", note=result.note or "no trial was completed")
    result = replace(result, state="measured" if len(trials) >= result.cell.trials else "cut short")
    between = window(trials, result.workers)
    a_second = rate(trials, between, epochs)
    busy, joules, by = usage(samples, between)
    values = [trial.value for trial in trials if trial.value is not None]
    seconds = between[1] - between[0]
    return replace(
        result,
        trials_an_hour=a_second * 3600 if a_second else None,
        window_seconds=seconds,
        busy=busy,
        joules=joules / (a_second * seconds) if joules is not None and a_second else None,
        joules_by=by,
        value=mean(values) if values else None,
        estimate_off=estimate_off(trials),
    )


def difference(one: Measured, other: Measured) -> float | None:
    """How far the metric's means over the seeds that both have are apart; None without such seeds."""
    of_one, of_other = ({trial.seed: trial.value for trial in cell.trials} for cell in (one, other))
    pairs = [(value, of_other.get(seed)) for seed, value in of_one.items()]
    both = [(value, of) for value, of in pairs if value is not None and of is not None]
    return abs(mean(value for value, _ in both) - mean(of for _, of in both)) if both else None


def verdicts(cells: Sequence[Measured]) -> list[tuple[bool, str]]:
    """Whether each bar is met, with what was found."""
    main = [row for row in cells if row.cell.model == MAIN and row.trials_an_hour]
    best: dict[str, Measured] = {}
    for row in sorted(main, key=lambda cell: cell.trials_an_hour or 0.0):
        best[row.cell.way] = row
    warm = [row for row in main if row.cell.way == "warm" and not row.cell.levers]
    apart = difference(best["ours"], warm[0]) if "ours" in best and warm else None
    errors = [row.estimate_off for row in cells if row.estimate_off is not None]
    lost = sum(row.lost for row in cells if row.cell.way == "ours")
    failed = sum(row.state == "failed" for row in cells if row.cell.way == "ours")
    worst = max(errors, key=abs, default=None)

    def faster(way: str, name: str, bar: float) -> tuple[bool, str]:
        if missing := [one for one in ("ours", way) if one not in best]:
            return False, f"{MAIN}: {', '.join(missing)} not measured, {name}"
        ratio = (best["ours"].trials_an_hour or 0.0) / (best[way].trials_an_hour or math.inf)
        return ratio >= bar, f"{ratio:.1f} times {name}, at least {bar:g}"

    return [
        faster("fresh", "fresh processes", FRESH_RATIO),
        faster("ray-tune", "Ray Tune's best", RAY_RATIO),
        (
            apart is not None and apart <= MOST_DIFFERENCE,
            f"metric {'unknown' if apart is None else f'{apart:.4f}'} apart, at most {MOST_DIFFERENCE:g}",
        ),
        (lost == failed == 0, f"{lost} trials lost, {failed} cells of ours failed"),
        (
            worst is not None and abs(worst) <= MOST_ERROR,
            f"estimates off by {'?' if worst is None else f'{worst:+.1%}'} at worst, within {MOST_ERROR:.0%}",
        ),
    ]
