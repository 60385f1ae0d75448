"""Studies of several seeds, and studies that end by a limit of time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from tests.study.test_study import study
from tests.support.packing import start_all
from tests.support.toy import Toy
from tuner.decisions.packer import Packer
from tuner.decisions.plan import Plan, make_plan
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.machine.interrupts import Interrupt, TimeLimitReached
from tuner.search.configurations import configurations
from tuner.spec.settings import Settings
from tuner.study.planning import to_trials
from tuner.trial import GB, Device, MemoryEstimate, Request, Trial
from tuner.workloads.task import Selection

AB = ({"name": "a"}, {"name": "b", "lr": 0.01})


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]


def resumed(folder: Path, *listed: dict[str, Any], **settings: Any) -> Any:
    return study(folder, *listed, **{"output": None, "resume": str(folder), **settings})


def test_trials_are_numbered_seed_by_seed_so_that_more_seeds_only_add_some() -> None:
    choices = [Selection(Toy(), lambda: None, configurations(AB, Toy.hyperparameters))]
    three = to_trials(choices, Settings(seed=4, seeds=3))
    assert [(trial.trial_id, trial.name, trial.seed) for trial in three] == [
        ("t001", "a", 4),
        ("t002", "b", 4),
        ("t003", "a", 5),
        ("t004", "b", 5),
        ("t005", "a", 6),
        ("t006", "b", 6),
    ]
    assert to_trials(choices, Settings(seed=4, seeds=2)) == three[:4]


def test_every_configuration_starts_before_any_has_its_second_seed() -> None:
    device = Device("", "cpu", 0, "a CPU", 4 * GB, 4 * GB, 8)
    trials = {("large", 3): 0, ("small", 1): 0, ("middle", 2): 0}
    requests = [
        Request(Trial(f"{name}{seed}", "toy", name, {}, seed), MemoryEstimate("given"), gb * GB)
        for name, gb in trials
        for seed in (1, 0)
    ]
    packer = Packer(
        make_plan([device], [request.need_bytes for request in requests], packing="per-trial", buffer_bytes=0)
    )
    packer.enqueue(requests)
    order = []
    while placed := start_all(packer):
        order += [placement.trial.trial_id for placement in placed]
        for placement in placed:
            packer.release(placement)
    assert order == ["large0", "small0", "middle0", "middle1", "large1", "small1"]


def test_a_study_of_several_seeds_has_a_row_for_each_and_a_table_of_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = study(tmp_path / "out", *AB, seeds=3)
    assert sorted((row["name"], row["seed"]) for row in result.rows) == [(n, s) for n in "ab" for s in (0, 1, 2)]
    assert len({row["val_loss"] for row in result.rows}) == 6
    printed = capsys.readouterr().out
    assert "trials     6, of 2 configurations with seeds 0 to 2; the data are split alike for all" in printed
    assert "[1/6] a (seed 0) completed" in printed
    assert "mean val_loss" in printed
    assert "cannot be told from the best, " in printed
    assert f"best single trial: {result.rows[0]['name']} (seed {result.rows[0]['seed']}), val_loss" in printed
    assert len(json.loads((tmp_path / "out" / "study.json").read_text())["configurations"]) == 2


def test_a_doubt_about_the_best_is_the_line_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "caution", lambda self, data: "it was chosen by a coin", raising=False)
    study(tmp_path / "out", *AB)
    lines = capsys.readouterr().out.splitlines()
    (best,) = (number for number, line in enumerate(lines) if line.startswith("best: "))
    assert "warning: it was chosen by a coin" in lines[best + 1 :]


def test_trials_that_failed_are_listed_below_the_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path / "out", {"name": "a"}, {"name": "b", "fault": 1}, seeds=2)
    printed = capsys.readouterr().out
    assert "0/2" in printed
    assert "not judged, with fewer than two completed seeds in common: b" in printed
    assert printed.count("first step: loss failed: ValueError: no such thing") == 4  # as they ended, and in the table


def test_a_seed_of_several_is_the_same_trial_as_alone(tmp_path: Path) -> None:
    several = {row["seed"]: row for row in study(tmp_path / "out", {"name": "a"}, seeds=3).rows}
    (alone,) = study(tmp_path / "alone", {"name": "a"}, seed=2, split_seed=0).rows
    assert alone["val_loss"] == several[2]["val_loss"]
    about = json.loads((tmp_path / "alone" / "study.json").read_text())
    assert (about["seed"], about["split_seed"]) == (2, 0)


def test_a_study_goes_on_with_more_seeds_and_keeps_those_that_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    study(folder, *AB, seeds=2)
    result = resumed(folder, *AB, seeds=3)
    assert [row["trial_id"] for row in journal(folder)] == ["t001", "t002", "t003", "t004", "t005", "t006"]
    assert {row["status"] for row in result.rows} == {"completed"}
    about = json.loads((folder / "study.json").read_text())
    assert (about["seeds"], about["settings"]["seeds"], len(about["configurations"])) == (3, 3, 2)
    best = min(result.rows, key=lambda row: row["val_loss"])
    assert torch.load(folder / "best.pt", weights_only=True)["seed"] == best["seed"], "also a new one's weights"
    with pytest.raises(InputError, match="it has 3 seeds; give seeds=3 or more"):
        resumed(folder, *AB, seeds=2)
    with pytest.raises(InputError, match="its split_seed is 0, not 5"):
        resumed(folder, *AB, seeds=3, split_seed=5)
    with pytest.raises(InputError, match="seeds=600 makes 1200 trials, which takes longer trial ids"):
        resumed(folder, *AB, seeds=600)


def test_the_means_of_a_study_are_had_by_folder_and_by_frame(tmp_path: Path) -> None:
    result = study(tmp_path / "out", *AB, seeds=3)
    frame = tuner.compare(tmp_path / "out", metric="val_loss")
    assert frame.equals(tuner.compare(result.to_frame(), metric="val_loss"))
    means = result.to_frame().groupby("name").val_loss.mean().sort_values()
    assert list(frame.name) == list(means.index)
    assert list(frame["mean"]) == pytest.approx(list(means))
    assert frame.verdict[0] == "best"
    assert (frame.completed == 3).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "toy: say by which metric"), ({"metric": "val_rmse"}, "metric 'val_rmse': the trials of toy have no such")],
)
def test_means_of_what_is_not_there_are_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    study(tmp_path / "out", {"name": "a"})
    with pytest.raises(InputError, match=message):
        tuner.compare((tmp_path / "out" / "results.csv").rename(tmp_path / "alone.csv"), **options)
    with pytest.raises(InputError, match="the table has no column 'seed'"):
        tuner.compare(tuner.results(tmp_path / "out", columns="name,workload"))


class Sleeper(InProcessExecutor):
    """Time passes when the second trial reports an epoch: as much as the test says."""

    def __init__(self, passes: Callable[[], None]) -> None:
        super().__init__()
        self._passes = passes

    def poll(self, timeout_seconds: float) -> list[Any]:
        events = super().poll(timeout_seconds)
        if getattr(events[0][0], "trial_id", "") == "t002" and events[0][0].epoch == 2:
            self._passes()
        return events


def test_a_limit_of_time_ends_a_study_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = time.monotonic
    late = 0.0

    def pass_time() -> None:
        nonlocal late
        late = 3600.0

    monkeypatch.setattr("tuner.machine.interrupts.time.monotonic", lambda: clock() + late)
    folder, listed = tmp_path / "out", [{"name": name} for name in "abc"]
    result = study(folder, *listed, executor=lambda: Sleeper(pass_time), max_workers=1, time_limit="30m")
    assert [(row["name"], row["status"], row["epochs"], row["error"]) for row in journal(folder)] == [
        ("a", "completed", 3, ""),
        ("b", "interrupted", 2, "time limit of 30m reached while it ran"),
        ("c", "interrupted", 0, "time limit of 30m reached before it started"),
    ]
    assert journal(folder)[1]["val_loss"] > 0, "what it had reached is kept"
    assert result.exit_code == 1
    assert f"continue with: the same call, with resume='{folder}' in place of output" in capsys.readouterr().out
    late = 0.0
    assert {row["status"] for row in resumed(folder, *listed).rows} == {"completed"}


class NeverOpened(InProcessExecutor):
    def open(self, tasks: Any, plan: Plan, checkpoints: Path | None) -> None:
        raise AssertionError("the time was over before")


def test_a_limit_that_is_over_before_a_trial_starts_leaves_a_study_to_go_on_with(tmp_path: Path) -> None:
    result = study(tmp_path / "out", *AB, executor=NeverOpened, time_limit=0.000001)
    assert {row["error"] for row in result.rows} == {"time limit of 1e-06 s reached before it started"}


def test_the_users_signal_counts_for_more_than_the_time() -> None:
    interrupt = Interrupt(0.0)
    interrupt.check_signals()
    assert interrupt.seconds_left(0.5) == 0
    with pytest.raises(TimeLimitReached):
        interrupt.check()
    interrupt.remember()
    with pytest.raises(KeyboardInterrupt):
        interrupt.check()


def test_more_trials_than_a_study_can_have_are_refused_before_they_are_made() -> None:
    with pytest.raises(InputError, match=r"seeds=100000000: must be at most 100000$"):
        tuner.plan(seeds=100_000_000)
    with pytest.raises(InputError, match="seeds=90000: makes 180,000 trials; 100,000 are the most: give fewer"):
        tuner.plan(seeds=90_000, limit=2)
