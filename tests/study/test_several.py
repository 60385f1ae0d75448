"""Several workloads in one study."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import tuner
from tests.support.toy import Toy, Wide
from tuner.api.plan import plan
from tuner.errors import InputError
from tuner.execution.executor import Executor
from tuner.execution.in_process import InProcessExecutor
from tuner.machine.devices import ram_device
from tuner.records.files import best_name
from tuner.search.configurations import configurations
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.needs import Needs
from tuner.study.planning import to_trials
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.trial import EpochReport
from tuner.workloads.base import BUILT_IN, Workload
from tuner.workloads.task import Selection, load_tasks

TOY = [{"name": "a", "lr": 0.001}, {"name": "b"}]
WIDE = [{"name": "a", "width": 8}, {"name": "c", "lr": 0.001}]


@pytest.fixture(autouse=True)
def _toys_are_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "toy", "tests.support.toy:Toy")
    monkeypatch.setitem(BUILT_IN, "toy-wide", "tests.support.toy:Wide")


def choice(workload: Workload, listed: list[dict[str, Any]], data: Any = None) -> Selection:
    return Selection(workload, lambda: data, configurations(listed, workload.hyperparameters))


def both(data: Any = None) -> list[Selection]:
    return [choice(Toy(), TOY), choice(Wide(), WIDE, data)]


def study(folder: Path, choices: list[Selection], executor: Executor | None = None, **settings: Any) -> StudyResult:
    memory = {} if settings.get("auto_memory") else {"model_memory_gb": 0.1}
    common = {
        "output": str(folder),
        "device": "cpu",
        "gpu_memory_buffer_gb": 0,
        "max_workers": 1,
        "threads": 1,
        "report": False,
    }
    return run_study(
        StudySpec(
            choices, Settings(**{**common, **memory, **settings}), label="test", command="a test", shows_end=True
        ),
        executor or InProcessExecutor(),
    )


def test_rows_of_all_are_in_one_table_and_each_workloads_best_is_kept(tmp_path: Path) -> None:
    result = study(tmp_path / "out", both())
    ranked = [(row["trial_id"], row["workload"], row["name"]) for row in result.rows]
    assert ranked[:2] == [("t002", "toy", "b"), ("t001", "toy", "a")], "each workload's best first, by its own metric"
    assert [row["val_error"] for row in result.rows[2:]] == sorted(row["val_error"] for row in result.rows[2:])
    with (tmp_path / "out" / "results.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["trial_id"] for row in written] == ["t001", "t002", "t003", "t004"]
    metrics = ["train_loss", "val_loss", "best_epoch", "test_loss", "val_error", "test_error"]
    assert list(written[0])[6:12] == metrics
    assert (written[0]["val_error"], written[2]["val_loss"]) == ("", "")
    for row in (result.rows[0], result.rows[2]):
        kept = torch.load(tmp_path / "out" / best_name(row["workload"]), weights_only=True)
        assert (kept["workload"], kept["name"]) == (row["workload"], row["name"])
    assert not (tmp_path / "out" / "best.pt").exists()


def test_the_end_has_a_table_and_a_best_for_each_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = study(tmp_path / "out", both())
    lines = capsys.readouterr().out.splitlines()
    first = next(line[9:] for line in lines if line[9:].startswith("[1/4]"))
    assert first.startswith(f"[1/4] toy/a completed: val_loss {result.rows[1]['val_loss']:.4f} ")
    heads = [line.split()[:3] for line in lines if line.startswith("name ")]
    assert heads == [["name", "status", "val_loss"], ["name", "status", "val_error"]]
    assert [line for line in lines if line in ("toy", "toy-wide")] == ["toy", "toy-wide"]
    best = [line for line in lines if line.startswith("best: ")]
    assert best[0].startswith("best: toy/b, val_loss ")
    assert best[0].endswith(f"Again: tuner.load_best({str(tmp_path / 'out')!r})")
    assert best[1].startswith(f"best: toy-wide/{result.rows[2]['name']}, val_error ")


class Interrupted(InProcessExecutor):
    """A user presses Ctrl-C in the third of four trials."""

    def poll(self, timeout_seconds: float) -> list[Any]:
        events = super().poll(timeout_seconds)
        if isinstance(events[0][0], EpochReport) and events[0][0].trial_id == "t003":
            os.kill(os.getpid(), signal.SIGINT)
        return events


def test_it_is_gone_on_with_and_ends_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", both(), Interrupted())
    written = json.loads((tmp_path / "out" / "study.json").read_text())
    assert (written["workload"], len(written["fingerprint"])) == (["toy", "toy-wide"], 2)
    assert written["configurations"][3]["workload"] == "toy-wide"
    result = study(tmp_path / "out", both(), resume=str(tmp_path / "out"), output=None)
    alone = study(tmp_path / "alone", both())
    same = ("workload", "name", "status", "epochs", "val_loss", "val_error")
    assert [[row.get(key) for key in same] for row in result.rows] == [
        [row.get(key) for key in same] for row in alone.rows
    ]
    for name in ("toy", "toy-wide"):
        assert torch.load(tmp_path / "out" / best_name(name), weights_only=True)["workload"] == name


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (lambda: both()[:1], r"its workload is \['toy', 'toy-wide'\], not 'toy'"),
        (lambda: both()[::-1], "its workload is"),
        (lambda: both(np.ones(3)), "its data are different"),
        (lambda: [choice(Toy(), TOY), choice(Wide(), WIDE[:1])], "its configurations are different"),
    ],
)
def test_it_is_not_gone_on_with_as_another(tmp_path: Path, others: Any, message: str) -> None:
    study(tmp_path / "out", both())
    with pytest.raises(InputError, match=message):
        study(tmp_path / "out", others(), resume=str(tmp_path / "out"), output=None)


class Described(Wide):
    name: ClassVar[str] = "toy-wide"

    def describe(self, data: Any) -> str:
        return f"{len(data)} numbers"


def test_the_plan_tells_of_each_workloads_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path / "out", [choice(Toy(), TOY), choice(Described(), WIDE, [1, 2])], dry_run=True)
    assert "data       toy-wide: 2 numbers\ntrials     4\n" in capsys.readouterr().out


def test_epochs_replace_those_of_all_workloads_if_each_allows_them(tmp_path: Path) -> None:
    assert {row["epochs"] for row in study(tmp_path / "out", both(), epochs=1).rows} == {1}
    with pytest.raises(InputError, match="epochs=60: must be at most 50"):
        study(tmp_path / "more", both(), epochs=60)


def test_estimates_are_calibrated_by_each_workloads_own_trials(tmp_path: Path) -> None:
    study(tmp_path / "toy", [choice(Toy(), TOY[:1])], auto_memory=True)
    settings = Settings(auto_memory=True)
    needs = Needs(load_tasks(both()), [ram_device()], settings)
    requests = needs.of(to_trials(both(), settings)).requests
    methods = [(request.trial.workload, request.estimate.method) for request in requests]
    assert methods == [("toy", "traced, calibrated")] * 2 + [("toy-wide", "traced")] * 2
    assert {name for name, samples in needs.samples.items() if samples} == {"toy"}


def test_a_plan_of_both_has_the_data_and_the_trials_of_both(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "configurations: [{workload: toy, name: a}, {workload: toy-wide, name: a}, {workload: toy, lr: 1}]"
    )
    found = plan(config=str(path), device="cpu", model_memory_gb=0.1, gpu_memory_buffer_gb=0)
    assert [(request.trial.trial_id, found.title(request.trial)) for request in found.requests] == [
        ("t001", "toy/a"),
        ("t002", "toy/lr=1"),
        ("t003", "toy-wide/a"),
    ]
    assert [name for name, _ in tuner.estimate(config=str(path), device="cpu")] == ["toy/a", "toy/lr=1", "toy-wide/a"]


@pytest.mark.ray
def test_a_file_of_both_runs_and_is_gone_on_with_by_its_folder_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], shared_ray: None
) -> None:
    (tmp_path / "own.yaml").write_text(
        "defaults: {epochs: 1, workload: toy-wide}\nconfigurations: [{name: a}, {name: a, workload: toy}, {width: 2}]"
    )
    options = {"config": str(tmp_path / "own.yaml"), "data": {"toy": "t"}, "overrides": ["width=3", "lr=0.2"]}
    out = str(tmp_path / "out")
    first = tuner.run(**options, output=out, device="cpu", gpu_memory_buffer_gb=0, model_memory_gb=0.7, max_workers=1)
    assert [(row["workload"], row["status"]) for row in first.rows] == [("toy-wide", "completed")] * 2 + [
        ("toy", "completed")
    ]
    (again,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("best: toy/a, val_loss ")]
    assert again.endswith(f" train --from {out} --trial t003")
    (tmp_path / "own.yaml").unlink()
    assert tuner.run(resume=out).rows == first.rows
    assert "no trials are left to run" in capfd.readouterr().out


def best_of(folder: Path, *names: str) -> None:
    for name in names:
        torch.save({"workload": name, "config": {}, "weights": {}}, folder / best_name(name))


def test_the_best_of_several_workloads_is_asked_for_by_name(tmp_path: Path) -> None:
    best_of(tmp_path, "toy", "toy-wide")
    with pytest.raises(
        InputError, match="the best weights of several workloads: choose workload 'toy' or 'toy-wide'"
    ):
        tuner.load_best(tmp_path)
    with pytest.raises(InputError, match="holds no best weights of 'graphsage': choose workload 'toy' or 'toy-wide'"):
        tuner.load_best(tmp_path, "graphsage")
    with pytest.raises(
        InputError, match=r"workload 'toy-wide': its build_model fails without data .*'width'.*restore_model"
    ):
        tuner.load_best(tmp_path, "toy-wide")


def test_the_best_of_the_only_workload_need_not_be_named(tmp_path: Path) -> None:
    torch.save({"workload": "toy", "config": {}, "weights": {}}, tmp_path / "best.pt")
    for name in (None, "toy"):
        with pytest.raises(InputError, match="workload 'toy': its build_model fails without data"):
            tuner.load_best(tmp_path, name)
    with pytest.raises(InputError, match=r"best.pt is of workload 'toy', not 'toy-wide'"):
        tuner.load_best(tmp_path, "toy-wide")
