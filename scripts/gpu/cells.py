"""The cells of ``trials_per_hour``: which there are, in which order, and what is read off their trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import Any, Literal

Way = Literal["ours", "ray-tune", "fresh", "warm"]
WAYS: tuple[Way, ...] = ("ours", "ray-tune", "fresh", "warm")
MAIN = "graphsage-64x2"  # the model of the bars
GRAPHS = "cuda_graphs"  # the lever that a trial has without tuner's study, too
FUNCTION, FRESH = "mlp-function", "fresh_processes"
ONE_BY_ONE = 3  # the trials of a cell without tuner and Ray Tune, of which each takes seconds to start
GRAPHS_RATIO, EAGER_RATIO = 1.5, 1.0  # trials an hour of tuner over Ray Tune's best, with and without CUDA graphs
MOST_DIFFERENCE = 0.01  # of the metric's mean over the same seeds
MOST_ERROR, MOST_UNDER = 0.01, 0.02  # of estimates: at the median without a sign, and below what was reserved


@dataclass(frozen=True)
class Cell:
    """One measurement: a model, trained so often in this way.

    ``workers`` is the number of trials at once, which for Ray Tune is 1 / the GPU's fraction.
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
            return f"Ray Tune, 1/{self.workers} GPU"
        return names[self.way] + "".join(f" + {lever}" for lever in self.levers)


@dataclass(frozen=True)
class Trial:
    """What is known of a trial. Times are unix seconds; ``epochs`` begins with that at which training began."""

    seed: int
    epochs: tuple[float, ...]
    ended: float
    value: float | None  # of the metric that is compared
    reserved_bytes: float | None = None  # the allocator's peak


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
    note: str = ""
    trials: tuple[Trial, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Measured:
        """What an earlier command has written of a cell."""
        cell = Cell(**{**record["cell"], "levers": tuple(record["cell"]["levers"])})
        trials = (Trial(**{**trial, "epochs": tuple(trial["epochs"])}) for trial in record["trials"])
        return cls(**{**record, "cell": cell, "trials": tuple(trials)})


def plan(model: str, ways: Sequence[Way], workers: Sequence[int], trials: int, *, graphs: bool) -> list[Cell]:
    """The cells, the most important first; of tuner's and Ray Tune's each worker has this number of ``trials``.

    ``graphs`` says whether the model's steps can be CUDA graphs.
    """
    top, *fewer = sorted(set(workers), reverse=True)
    few = (fewer or [top])[0]
    cells = [Cell(model, "ours", top, top * trials), Cell(model, "ray-tune", top, top * trials)]
    cells += [Cell(model, "ours", top, top * trials, (GRAPHS,))] if graphs else []
    cells += [Cell(model, way, count, count * trials) for count in fewer for way in WAYS[:2]]
    cells += [Cell(FUNCTION, "ours", few, few * trials, levers) for levers in ((FRESH,), ())]
    cells += [Cell(each, way, 1, ONE_BY_ONE) for each in dict.fromkeys([model, "mlp"]) for way in WAYS[2:]]
    cells += [Cell(model, "warm", 1, ONE_BY_ONE, (GRAPHS,))] if graphs else []
    return [cell for cell in cells if cell.way in ways]


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
    )


def difference(one: Measured, other: Measured) -> float | None:
    """How far the metric's means over the seeds that both have are apart; None without such seeds."""
    of_one, of_other = ({trial.seed: trial.value for trial in cell.trials} for cell in (one, other))
    pairs = [(value, of_other.get(seed)) for seed, value in of_one.items()]
    both = [(value, of) for value, of in pairs if value is not None and of is not None]
    return abs(mean(value for value, _ in both) - mean(of for _, of in both)) if both else None


def verdicts(cells: Sequence[Measured], errors: Sequence[float], main: str = MAIN) -> list[tuple[bool, str]]:
    """Whether each bar is met, with what was found; ``errors`` are those of the estimates, as shares of the truth."""
    rows = [row for row in cells if row.cell.model == main and row.trials_an_hour]
    best: dict[tuple[Way, bool], Measured] = {}
    for row in sorted(rows, key=lambda row: row.trials_an_hour or 0.0):
        best[row.cell.way, GRAPHS in row.cell.levers] = row
    theirs = best.get(("ray-tune", False))

    def faster(graphs: bool, bar: float) -> tuple[bool, str]:
        mine, name = best.get(("ours", graphs)), f"tuner{' with CUDA graphs' * graphs}"
        if mine is None or theirs is None:
            return False, f"{main}: {name} or Ray Tune was not measured"
        ratio, apart = (mine.trials_an_hour or 0.0) / (theirs.trials_an_hour or math.inf), difference(mine, theirs)
        same = apart is not None and apart <= MOST_DIFFERENCE
        shown = "unknown" if apart is None else f"{apart:.4f}"
        return ratio >= bar and same, (
            f"{name} does {ratio:.2f} times Ray Tune's best, at least {bar:g}; "
            f"the metric is {shown} apart, at most {MOST_DIFFERENCE:g}"
        )

    ours = [row for row in cells if row.cell.way == "ours" and row.state != "not run"]
    lost, ran_out = sum(row.lost for row in ours), sum(row.ran_out for row in ours)
    failed = sum(row.state == "failed" for row in ours)
    off, under = median(map(abs, errors)) if errors else math.inf, min([0.0, *errors])
    return [
        faster(True, GRAPHS_RATIO),
        faster(False, EAGER_RATIO),
        (not (lost or ran_out or failed), f"{ran_out} attempts ran out, {lost} trials lost, {failed} cells failed"),
        (
            off <= MOST_ERROR and under >= -MOST_UNDER,
            f"{len(errors)} estimates are off by {off:.1%} at the median, at most {MOST_ERROR:.0%}, and "
            f"by {under:+.1%} at worst, not under {-MOST_UNDER:.0%}",
        ),
    ]
