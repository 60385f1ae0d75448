"""Trains with the batches that ``tune optimize`` chooses, in real workers under a cap of as much memory, on the CPU.

For GraphSAGE and GT-SSL and devices of 1, 2, 4 and 8 GB the batch is chosen as ``tune optimize`` does it, and trained
with for two epochs in a Ray worker that is capped at the device's size. Then a tenth more is, which must run out of
memory, or what else stopped the batch is named. Trees are all alike here: of others a batch is chosen so that the
largest of them fit, and a tenth more of those that are drawn may well fit, too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from scripts.benchmarks.verdicts import print_verdicts
from tuner.datasets.synthetic import synthetic_ratings
from tuner.datasets.trees import TreeData, build, synthetic_trees
from tuner.machine.devices import ram_device
from tuner.records.attempts import Line
from tuner.search.configurations import complete
from tuner.sizing.choices import Chosen, Goal
from tuner.sizing.workload_sizing import Predictor, batch_bound, batch_key, profiled, size_configuration
from tuner.spec.settings import Settings
from tuner.study.prepare import Selected
from tuner.study.study import run_study
from tuner.trial import GB, Configuration
from tuner.workloads.lookup import find_workload
from tuner.workloads.task import Selection, TrainingTask

RATINGS = 700_000
TREES_PER_GB = 34  # to train on: a tenth more than the largest batch
MORE = 1.1


@dataclass(frozen=True)
class Case:
    """A configuration to size and the device's memory."""

    name: str
    workload: str
    gb: float
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """What came of a case: the choice, and the two trials."""

    case: Case
    chosen: Chosen
    status: str
    peak_gb: float | None
    more_batch: int
    more_status: str
    more_peak_gb: float | None

    @property
    def held(self) -> bool:
        """The batch ran, and a tenth more did not fit: it ran out of memory, took more, or was stopped by name.

        The worker's cap counts private memory that can be written; a process takes a little more than that.
        """
        above = (self.more_peak_gb or 0) > self.case.gb
        stopped = self.chosen.stopped_by != "memory" or self.more_status == "out_of_memory" or above
        return self.status == "completed" and stopped


def cases_of(gb: float) -> list[Case]:
    """Two of GraphSAGE, wider where there is more memory, so that the ratings are enough; and one of GT-SSL.

    Its trees have many pairs, which take more memory than time.
    """
    width = max(16, int(128 * gb))
    trees = {"hidden_channels": 64, "n_negatives": 20_000, "max_paths_per_batch": 100_000_000}
    return [
        Case(f"graphsage {width}x2", "graphsage", gb, {"hidden_dim": width, "num_layers": 2}),
        Case(f"graphsage {width}x3", "graphsage", gb, {"hidden_dim": width, "num_layers": 3}),
        Case("gt-ssl 64x3", "gt-ssl", gb, trees),
    ]


def make_tasks(gb: float) -> dict[str, TrainingTask]:
    data = {"graphsage": synthetic_ratings(2_000, 2_000, RATINGS), "gt-ssl": trees(int(TREES_PER_GB * gb))}
    return {name: TrainingTask(find_workload(name), loaded) for name, loaded in data.items()}


def trees(count: int) -> TreeData:
    """One tree again and again, under two labels: so many to train on, and two each to choose by and to report on."""
    grown, _, classes = synthetic_trees(1)
    number = np.arange(count + 4)
    data = build(grown * len(number), number % 2, f"{len(number)} trees", classes)
    return replace(data, train=number[:count], validation=number[count : count + 2], test=number[count + 2 :])


def choose(case: Case, task: TrainingTask, safety_margin: float, profile: bool) -> Chosen:
    device = replace(ram_device(), total_bytes=int(case.gb * GB), free_bytes=int(case.gb * GB))
    goal = Goal(int(case.gb * GB * safety_margin), safety_margin)
    predictor, config = Predictor(task, device), complete(case.values, task.workload.schema)
    chosen = size_configuration(predictor, case.name, config, goal)
    return profiled(predictor, config, goal, chosen)[0] if profile else chosen


def train(
    gb: float, tasks: Mapping[str, TrainingTask], sized: Sequence[tuple[Case, int]], folder: Path
) -> dict[str, Line]:
    """Two epochs of each case with its batch in a worker that is capped at ``gb``, one at a time; rows by name."""
    choices = []
    for workload, task in tasks.items():
        listed = [
            Configuration(
                f"{case.name} {batch}",
                complete({**case.values, batch_key(task): batch, "epochs": 2}, task.workload.schema),
            )
            for case, batch in sized
            if case.workload == workload
        ]
        if listed:
            choices.append(Selection(task.workload, lambda task=task: task.data, listed))
    settings = Settings(
        model_memory_gb=gb,
        gpu_memory_buffer_gb=0,
        max_workers=1,
        max_attempts=1,
        threads=1,
        device="cpu",
        output=str(folder),
    )
    result = run_study(Selected(choices, settings, label="batch sizes", command="scripts/benchmark batch_sizes"))
    return {row["name"]: row for row in result.rows}


def of_size(
    gb: float, tasks: Mapping[str, TrainingTask], safety_margin: float, profile: bool, only: str, folder: Path
) -> list[Found]:
    cases = [case for case in cases_of(gb) if only in case.name]
    chosen = {case.name: choose(case, tasks[case.workload], safety_margin, profile) for case in cases}
    more = {case.name: tenth_more(case, chosen[case.name].batch_size, tasks[case.workload]) for case in cases}
    sized = [(case, batch) for case in cases for batch in {chosen[case.name].batch_size, more[case.name]}]
    rows = train(gb, tasks, sized, folder)
    return [_found(case, chosen[case.name], more[case.name], rows) for case in cases]


def tenth_more(case: Case, batch: int, task: TrainingTask) -> int:
    """A tenth more, rounded up, as far as there are samples."""
    return min(int(np.ceil(MORE * batch)), batch_bound(task)[0])


def _found(case: Case, chosen: Chosen, more: int, rows: Mapping[str, Line]) -> Found:
    row, larger = rows[f"{case.name} {chosen.batch_size}"], rows[f"{case.name} {more}"]
    return Found(
        case,
        chosen,
        row["status"],
        row["peak_memory_gb"],
        more,
        larger["status"],
        larger["peak_memory_gb"],
    )


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Calibrations of the user's are neither read nor changed."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    yield
    del os.environ["XDG_CACHE_HOME"]


def print_table(found: Sequence[Found]) -> None:
    click.echo(
        f"\n{'case':<18} {'GB':>4} {'batch':>8} {'stopped by':<17} {'predicted':>9} {'peak':>6} {'status':<14} "
        f"{'a tenth more':>12} {'peak':>6} {'status':<14}"
    )
    for one in found:
        chosen = one.chosen
        click.echo(
            f"{one.case.name:<18} {one.case.gb:>4g} {chosen.batch_size:>8} {chosen.stopped_by:<17} "
            f"{chosen.need_bytes / GB:>9.2f} {_gb(one.peak_gb):>6} {one.status:<14} "
            f"{one.more_batch:>12} {_gb(one.more_peak_gb):>6} {one.more_status:<14}"
        )


def _gb(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


@click.command(help=__doc__)
@click.option("--gb", "sizes", multiple=True, type=float, default=(1, 2, 4, 8), show_default=True)
@click.option("--only", default="", metavar="TEXT", help="Cases whose name has this in it.")
@click.option("--safety-margin", type=float, default=0.98, show_default=True, help="As in tune optimize.")
@click.option("--profile", is_flag=True, help="Check and correct each choice by real steps, as in tune optimize.")
@click.pass_context
def main(
    ctx: click.Context,
    sizes: tuple[float, ...],
    only: str,
    safety_margin: float,
    profile: bool,
) -> None:
    with tempfile.TemporaryDirectory() as temporary, own_cache(Path(temporary)):
        folder = Path(temporary)
        found: list[Found] = []
        for gb in sizes:
            found += of_size(gb, make_tasks(gb), safety_margin, profile, only, folder / f"study-{gb:g}")
    print_table(found)
    held = sum(one.held for one in found)
    click.echo()
    ctx.exit(0 if print_verdicts([(held == len(found), f"{held} of {len(found)} cases")]) else 1)


if __name__ == "__main__":
    main()
