"""Population-based training: members pause, take turns, and take over checkpoints and changed values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tuner
from tests.support.toy import Toy
from tuner.decisions.events import Ended
from tuner.errors import InputError
from tuner.hyperparameters import Hyperparameter

SPACE = {"lr": {"uniform": [0.1, 1.0]}, "width": {"choice": [1, 2]}}
OPTIONS: dict[str, Any] = {
    "space": SPACE,
    "num_samples": 8,
    "metric": "gain",
    "direction": "maximize",
    "scheduler": "pbt",
    "scheduler_options": {"interval": 2, "epochs": 6},
    "in_process": True,
    "report": False,
}


def climb(config: dict[str, Any]) -> None:
    """Gains the learning rate in each of 6 epochs."""
    state = tuner.checkpoint() or {"epoch": 0, "gain": 0.0}
    for epoch in range(state["epoch"] + 1, 7):
        state = {"epoch": epoch, "gain": state["gain"] + config["lr"]}
        tuner.report(gain=state["gain"], epoch=epoch, checkpoint=state)


def forgets(config: dict[str, Any]) -> None:
    for epoch in range(1, 7):
        tuner.report(gain=config["lr"], epoch=epoch)


class Wide(Toy):
    """Learns y = 2x with some weights."""

    name = "wide"
    hyperparameters = {**Toy.hyperparameters, "width": Hyperparameter(1, 1, 9, "weights")}  # noqa: RUF012

    def build_model(self, config: Any, data: Any) -> nn.Module:
        model = nn.Sequential(nn.Linear(1, config["width"]), nn.Linear(config["width"], 1))
        model.register_buffer("fault", torch.tensor(0))
        return model


def lines(folder: Path, name: str = "attempts.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines() if line]


def taken_over(journal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attempts that began with the checkpoint of another trial."""
    parents = [(row, row["parent_checkpoint"].partition("@")[0]) for row in journal]
    return [row for row, parent in parents if parent not in ("", row["trial_id"])]


def test_bad_members_take_over_checkpoints_and_values_of_good_ones(tmp_path: Path) -> None:
    result = tuner.run(climb, output=tmp_path / "out", **OPTIONS)
    assert [row.status for row in result.trials] == ["completed"] * 8
    assert [row.epochs for row in result.trials] == [6] * 8
    journal = lines(tmp_path / "out")
    gains = {f"{row['trial_id']}@{row['attempts']}": row["gain"] for row in journal if row["status"] == "paused"}
    taken = [
        row
        for row in journal
        if row["parent_checkpoint"] and not row["parent_checkpoint"].startswith(row["trial_id"])
    ]
    assert taken
    for row in taken:  # what it gained since then is its own new learning rate
        assert row["gain"] == pytest.approx(gains[row["parent_checkpoint"]] + 2 * row["config/lr"], abs=1e-6)
    assert not list((tmp_path / "out" / "checkpoints").iterdir())


def test_members_take_turns_where_they_do_not_fit_at_once(tmp_path: Path) -> None:
    tuner.run(climb, output=tmp_path / "out", **OPTIONS)
    order = [row["epochs"] for row in lines(tmp_path / "out")]
    assert order[:8] == [2] * 8
    assert order == sorted(order)


def test_a_population_goes_on_after_a_kill(tmp_path: Path) -> None:
    killed = f"""
import os, signal
from tests.study.test_population import OPTIONS, climb
import tuner
from tuner.decisions.events import Ended
from tuner.decisions.events import Ended
ended = []
def kill(event):
    ended.extend([event] * isinstance(event, Ended))
    if len(ended) == 11:
        os.kill(os.getpid(), signal.SIGKILL)
tuner.run(climb, output={str(tmp_path / "out")!r}, callbacks=[kill], **OPTIONS)
"""
    ran = subprocess.run([sys.executable, "-c", killed], capture_output=True, timeout=120, check=False)
    before = lines(tmp_path / "out")
    assert ran.returncode == -9
    assert len(before) == 11
    result = tuner.run(climb, resume=tmp_path / "out", in_process=True, report=False)
    assert [row.status for row in result.trials] == ["completed"] * 8
    assert lines(tmp_path / "out")[:11] == before
    again = [(line["trial_id"], line["epoch"]) for line in lines(tmp_path / "out", "epochs.jsonl") if line["metrics"]]
    assert len([pair for pair in again if pair[1] <= 2]) == 16  # no first interval was trained twice


def test_a_member_needs_checkpoints(tmp_path: Path) -> None:
    result = tuner.run(forgets, output=tmp_path / "out", **OPTIONS)
    assert "give tuner.report(…, checkpoint=…) a state dict or a folder" in result.trials[0].error


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"space": None, "num_samples": None, "config": [{"lr": 0.1}]}, "drawn from a space at random: give space"),
        ({"search": "tpe"}, "and search='random'"),
        ({"seeds": 2}, "trains a member once: leave it out"),
        ({"scheduler_options": {"quantile": 0.9}}, "quantile is 0.9: give more than 0 and at most 0.5"),
        ({"scheduler_options": {"mutate": "depth", "epochs": 1}}, "the space has no depth"),
        ({"scheduler_options": {}}, "give epochs, after how many reports a trial ends"),
    ],
)
def test_what_a_population_cannot_use_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        tuner.run(climb, output=tmp_path / "out", **{**OPTIONS, **change})
    assert not (tmp_path / "out").exists()


def test_a_workload_takes_over_weights_but_not_the_rate_nor_another_shape(tmp_path: Path) -> None:
    space = {"lr": {"loguniform": [1e-3, 1e-1]}, "width": {"choice": [1, 2]}}
    options = {**OPTIONS, "space": space, "metric": "val_loss", "direction": "minimize", "scheduler_options": {}}
    result = tuner.run(Wide, epochs=4, output=tmp_path / "out", **options)
    assert [(row.status, row.epochs) for row in result.trials] == [("completed", 4)] * 8
    journal = lines(tmp_path / "out")
    before = {f"{row['trial_id']}@{row['attempts']}": row for row in journal}
    assert taken_over(journal)
    for row in taken_over(journal):
        parent = before[row["parent_checkpoint"]]
        assert row["config/width"] == parent["config/width"]
        assert row["config/lr"] != parent["config/lr"]
        assert row["epochs"] == parent["epochs"] + 1


@pytest.mark.usefixtures("writes_pages")
def test_the_page_draws_the_schedules_of_a_population(tmp_path: Path) -> None:
    tuner.run(climb, output=tmp_path / "out", **{**OPTIONS, "report": True})
    assert "a trial took over the checkpoint of another" in (tmp_path / "out" / "report.html").read_text()


def test_members_go_on_alone_if_the_study_is_resumed_as_no_population(tmp_path: Path) -> None:
    ended: list[Ended] = []

    def stop(event: object) -> None:
        ended.extend([event] * isinstance(event, Ended))  # type: ignore[list-item]
        if len(ended) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuner.run(climb, output=tmp_path / "out", callbacks=[stop], **OPTIONS)
    result = tuner.run(
        climb, resume=tmp_path / "out", scheduler="fifo", scheduler_options={}, in_process=True, callbacks=[]
    )
    assert [row.status for row in result.trials] == ["completed"] * 8
    assert len(lines(tmp_path / "out")) >= 17
