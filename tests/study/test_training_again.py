"""``tuner.train``: one configuration of a study again. A study in Ray's workers is repeated in ``test_main.py``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tuner
from tests.conftest import write_ratings
from tuner.api.train import Differs, differing
from tuner.cli.main import main
from tuner.datasets.ratings import RatingData
from tuner.datasets.trees import TreeData
from tuner.errors import InputError
from tuner.estimation.service import EstimationService
from tuner.execution.in_process import InProcessExecutor
from tuner.machine.devices import ram_device
from tuner.records.study_record import read_study
from tuner.reporting.result_tables import figures_lines
from tuner.spec.listed import choose
from tuner.spec.settings import Settings
from tuner.spec.spelling import program
from tuner.spec.study_spec import StudySpec
from tuner.study.executors import make_executor
from tuner.study.past_trial import find_trial
from tuner.study.study import run_study
from tuner.training.optimizers import LearningRates
from tuner.trial import GB, EpochReport, MemoryEstimate
from tuner.workloads.graphsage.workload import GraphSAGE
from tuner.workloads.lookup import find_workload

GRAPHSAGE = """
defaults: {epochs: 3, batch_size: 100}
configurations: [{name: small, hidden_dim: 4}, {name: wide, hidden_dim: 8, accumulation: 2}]
"""
ESTIMATE = EstimationService.raw
TREES = "{workload: gt-ssl, epochs: 2, hidden_channels: 8, num_interactions: 1, lr: 0.01}"


class Interrupted(InProcessExecutor):
    """A user presses Ctrl-C as a trial reports its second epoch."""

    def poll(self, timeout_seconds: float) -> list[Any]:
        events = super().poll(timeout_seconds)
        if isinstance(events[0][0], EpochReport) and events[0][0].epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return events


def study(folder: Path, text: str, data: Any, executor: Any = None, **settings: Any) -> Path:
    """A study as ``tune run`` makes it, but in this process."""
    config = folder / "own.yaml"
    config.write_text(text)
    options = {"data": data, "skip_bad": False}
    choices, label = choose(Settings(config=str(config), data=data), settings.get("seed", 0))
    common: dict[str, Any] = {"model_memory_gb": 0.1, "gpu_memory_buffer_gb": 0, "device": "cpu", "threads": 1}
    common["report"] = False
    common |= {} if "resume" in settings else {"output": str(folder / "study")}
    run_study(
        StudySpec(
            choices, Settings(**{**common, "data": data, **settings}), label=label, command="tune", options=options
        ),
        executor or InProcessExecutor(),
    )
    return folder / "study"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two GraphSAGEs of three epochs, whose data are beside it."""
    folder = tmp_path_factory.mktemp("template")
    write_ratings(folder / "ml-small")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return study(folder, GRAPHSAGE, "ml-small")


@pytest.fixture
def small(template: Path, folder: Path) -> Path:
    """The same, in the test's own folder."""
    return Path(shutil.copytree(template, folder.parent / "study"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of a GraphSAGE and a GT-SSL, which stays as it is."""
    text = f"configurations: [{TREES}, {{workload: graphsage, name: a, epochs: 1, hidden_dim: 4}}]"
    folder = tmp_path_factory.mktemp("mixed")
    return study(folder, text, {"graphsage": str(write_ratings(folder / "ml-small"))})


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own_and_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tuner.study.study.make_executor", lambda _: InProcessExecutor())
    # What a trial takes is nothing that these tests ask.
    monkeypatch.setattr(EstimationService, "raw", lambda *_: MemoryEstimate("traced", context_bytes=GB // 5))


def best(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(folder / "best.pt", weights_only=True)
    return content


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def changed_journal(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "attempts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_best_trial_comes_out_again_to_the_last_bit(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.study.study.make_executor", make_executor)  # as a user runs it
    monkeypatch.setattr(EstimationService, "raw", ESTIMATE)
    result = tuner.train(small, exact=True, output="again")
    assert result.differences == {}
    assert result.metrics == result.study
    there, here = best(small), best(tmp_path / "again")
    assert same(there["weights"], here["weights"])
    assert {**there, "weights": 0} == {**here, "weights": 0}
    assert not tuner.load_best("again").training
    assert read_study(result.folder).command == f"{program()} train --from {small} --exact --output again"
    assert list(tuner.results("again").status) == ["completed"], "it is a study of one trial"


def test_a_trial_in_micro_batches_comes_out_again_too(small: Path) -> None:
    result = tuner.train(small, trial="wide", exact=True)
    assert result.differences == {}
    assert best(result.folder)["config"]["accumulation"] == 2
    assert result.folder.parts[0] == "results"


def test_gt_ssl_comes_out_again(mixed: Path) -> None:
    result = tuner.train(mixed, trial="t001", exact=True)
    assert result.differences == {}
    there = torch.load(mixed / "best-gt-ssl.pt", weights_only=True)
    assert same(there["weights"], best(result.folder)["weights"])


def test_a_trial_that_went_on_from_a_checkpoint_comes_out_again(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path, GRAPHSAGE, str(folder), Interrupted(checkpoint_seconds=0), max_workers=1)
    path = study(tmp_path, GRAPHSAGE, str(folder), resume=str(tmp_path / "study"))
    assert {"interrupted", "completed"} == {
        json.loads(line)["status"] for line in (path / "attempts.jsonl").read_text().splitlines()
    }
    assert tuner.train(path, trial="t001", exact=True).differences == {}


def test_more_epochs_are_another_training(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tuner.train(small, trial="small", epochs=5)
    assert result.differences is None
    assert best(result.folder)["config"]["epochs"] == 5
    printed = capsys.readouterr().out
    assert "completed: val_rmse" in printed
    assert "the metrics equal those of the study" not in printed


def test_all_data_leave_the_last_epoch_with_the_learning_rates_of_the_study(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    begin = LearningRates.begin

    def watched(self: LearningRates, epoch: int) -> None:
        begin(self, epoch)
        rates.append(self._optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(LearningRates, "begin", watched)
    changed_journal(small, lambda row: row.update(best_epoch=2))
    result = tuner.train(small, trial="small", all_data=True)
    assert rates == pytest.approx([0.01, 0.01 * 2 / 3])
    assert list(result.metrics) == ["train_loss", "best_epoch"]
    assert result.metrics["best_epoch"] == 2
    assert len(best(result.folder)["weights"]["col"]) == 2 * 1000, "every rating is an edge, in both directions"


def test_a_training_on_all_data_is_itself_trained_again_on_all_data(small: Path) -> None:
    first = tuner.train(small, trial="small", all_data=True, epochs=2, output="first")
    again = tuner.train("first", exact=True, output="again")
    assert (again.differences, again.metrics) == ({}, first.metrics)
    assert tuner.train("first", epochs=1, output="shorter").metrics["best_epoch"] == 1


def test_graphsage_joins_all_its_ratings(ratings: RatingData) -> None:
    train = find_workload("graphsage").all_data(ratings).train
    parts = (ratings.train, ratings.validation, ratings.test)
    for name in ("user", "item", "rating"):
        np.testing.assert_array_equal(getattr(train, name), np.concatenate([getattr(part, name) for part in parts]))


def test_gt_ssl_trains_on_all_trees(trees: TreeData) -> None:
    assert find_workload("gt-ssl").all_data(trees).train.tolist() == list(range(12))


def test_a_workload_that_cannot_join_its_data_says_so(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(GraphSAGE, "all_data")
    with pytest.raises(InputError, match="all_data=True: workload 'graphsage' has no method all_data"):
        tuner.train(small, all_data=True)


def test_a_figure_that_is_another_is_an_error_with_both_values(small: Path, tmp_path: Path) -> None:
    changed_journal(small, lambda row: row.update(val_rmse=0.5))
    with pytest.raises(
        Differs, match=r"^exact: the metrics are not those of the study: val_rmse 0\.5 there and \d\.\d+ here \("
    ):
        tuner.train(small, exact=True, output="again")
    assert (tmp_path / "again" / "best.pt").exists(), "what was trained is not lost"
    assert Differs.exit_code == 1


def test_what_may_have_made_the_figures_others_is_said(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed_journal(small, lambda row: row.update(val_rmse=0.5))
    about = json.loads((small / "study.json").read_text())
    about["versions"]["torch"] = "1.0"
    about["plan"]["devices"][0]["name"] = "an abacus"
    (small / "study.json").write_text(json.dumps(about))
    result = tuner.train(small)
    assert result.differences == {"val_rmse": (0.5, result.metrics["val_rmse"])}
    assert "(the study ran with torch 1.0; the study ran on an abacus)" in capsys.readouterr().out


def test_data_that_have_moved_are_given(small: Path, folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"its data: no folder .*; say by data where they are now"):
        tuner.train(small)
    assert tuner.train(small, exact=True, data="elsewhere").differences == {}, "also under another name"


def test_data_that_have_changed_are_told(small: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "u.data").read_text().splitlines()
    (folder / "u.data").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(InputError, match=r"exact and data='.*ml-small': the study's trial had another value"):
        tuner.train(small, exact=True)
    assert tuner.train(small).differences is None
    assert "note: the data are not the study's" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"study": None}, "study: give the folder of a study"),
        ({"study": "nowhere"}, "study='nowhere': there is no such folder"),
        ({"trial": "t009"}, "trial='t009': no trial in .* has ended that is called so; did you mean t00"),
        ({"trial": "smal"}, "did you mean small"),
        ({"trial": "zebra"}, "there are t001, t002, small, wide"),
        ({"workload": "gt-ssl"}, "workload='gt-ssl': the study in .* is of graphsage"),
        ({"epochs": 0}, "epochs=0: must be at least 1"),
        ({"epochs": 10**6}, "epochs=1000000: must be at most 100000"),
        ({"threads": 0}, "threads=0: must be at least 1"),
        ({"seed": -1}, "seed=-1: must be at least 0"),
        ({"output": "ml-small"}, "output='ml-small': the folder is not empty"),
        ({"exact": True, "device": "cuda"}, "exact and device='cuda': the study's trial had another value"),
        ({"exact": True, "all_data": True}, "exact and all_data: the study's trial had another value"),
        ({"exact": True, "epochs": 5}, "exact and epochs=5: the study's trial had another value"),
        ({"exact": True, "seed": 5}, "exact and seed=5"),
        ({"exact": True, "threads": 2}, "exact and threads=2"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(small: Path, options: dict[str, Any], message: str) -> None:
    before = sorted(Path().rglob("*"))
    with pytest.raises(InputError, match=message) as caught:
        tuner.train(**{"study": small, **options})
    assert "\n" not in str(caught.value)
    assert sorted(Path().rglob("*")) == before


def with_seeds(folder: Path, **values: list[float | None]) -> None:
    """Makes its journal one of configurations with a figure for each seed, in their order; None failed."""
    path = folder / "attempts.jsonl"
    row = json.loads(path.read_text().splitlines()[0])
    listed = [(name, seed, value) for name, losses in values.items() for seed, value in enumerate(losses)]
    rows = [
        {**row, "trial_id": f"t{i}", "name": name, "seed": seed, "val_rmse": value}
        | ({"status": "failed"} if value is None else {})
        for i, (name, seed, value) in enumerate(listed)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_best_of_several_seeds_is_the_best_mean_and_not_a_lucky_trial(small: Path) -> None:
    with_seeds(small, lucky=[0.70, 0.99, None], steady=[0.81, 0.80, 0.82], once=[0.10])
    found = find_trial(small, "best", None, None)
    assert (found.row.name, found.row.seed) == ("steady", 1)
    assert find_trial(small, "best", None, 2).row.seed == 2


def test_of_a_configuration_with_several_seeds_the_best_trial_is_taken(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_seeds(small, one=[None, 0.9, 0.8], none=[None, None])
    assert find_trial(small, "one", None, 1).row.trial_id == "t1"
    assert find_trial(small, "none", None, None).row.seed == 0
    with (small / "attempts.jsonl").open("a") as file:
        file.write('{"trial_id": "t00')
    tuner.train(small, trial="one", epochs=1, output="again")
    printed = capsys.readouterr().out
    assert "t2 one (seed 2), completed\n" in printed
    assert f"note: {small}/attempts.jsonl: line 6 is incomplete; left out\n" in printed
    assert best(Path("again"))["seed"] == 2


def test_a_journal_without_a_whole_line_is_refused(small: Path) -> None:
    (small / "attempts.jsonl").write_text("no\n")
    with pytest.raises(InputError, match=r"attempts\.jsonl: line 1 is incomplete, and there is no other; restore"):
        tuner.train(small)


def test_figures_of_another_seed_are_told_from_the_studys() -> None:
    heads = [figures_lines({}, {}, seeds)[0].strip() for seeds in ((2, 2), (7, 2))]
    assert heads == ["here  in the study", "here (seed 7)  in the study (seed 2)"]


def test_a_study_of_several_seeds_is_repeated_with_each_of_them(template: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(template.parent)
        folder = study(template.parent, GRAPHSAGE, "ml-small", seeds=2, output="seeds")
        two = tuner.train("seeds", trial="small", seed=1, exact=True, output="two")
    assert folder.exists()
    assert two.differences == {}
    assert best(template.parent / "two")["seed"] == 1


def test_of_several_workloads_one_is_chosen(mixed: Path) -> None:
    with pytest.raises(InputError, match="trial='best': there is one of gt-ssl and one of graphsage; choose by"):
        tuner.train(mixed)
    assert tuner.train(mixed, workload="graphsage", exact=True).differences == {}


def test_a_study_without_a_completed_trial_has_no_best(small: Path) -> None:
    changed_journal(small, lambda row: row.update(status="failed", val_rmse=None))
    with pytest.raises(InputError, match=r"none of its trials has reported .*; name one by trial, such as t001"):
        tuner.train(small)
    with pytest.raises(InputError, match="exact: t001 is failed"):
        tuner.train(small, trial="t001", exact=True)
    assert tuner.train(small, trial="t001", epochs=1).differences is None


def test_a_trial_that_ran_on_a_gpu_cannot_be_had_exactly(small: Path) -> None:
    changed_journal(small, lambda row: row.update(device="cuda:0"))
    with pytest.raises(InputError, match=r"exact: t00. ran on cuda:0, and on GPUs the last digits differ"):
        tuner.train(small, exact=True)


def test_a_notebooks_study_has_its_best_model_and_no_data(small: Path) -> None:
    about = json.loads((small / "study.json").read_text())
    (small / "study.json").write_text(json.dumps({**about, "options": None, "command": "a notebook"}))
    with pytest.raises(InputError, match=r"by a notebook, with data that are not at hand .*tuner\.load_best\("):
        tuner.train(small)


def test_what_does_not_fit_is_refused_before_training(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = replace(ram_device(), free_bytes=2**30 // 10)
    monkeypatch.setattr("tuner.machine.devices.ram_device", lambda: full)
    with pytest.raises(InputError, match=r"^wide: .* 0\.10 GB .*: use a larger device$"):
        tuner.train(small, trial="wide", output="again")
    assert not Path("again").exists()


@pytest.mark.parametrize("all_data", [False, True])
def test_after_ctrl_c_it_is_resumed_as_any_study(
    all_data: bool, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tuner.study.study.make_executor", lambda _: Interrupted())
        tuner.train(small, trial="small", epochs=3, all_data=all_data, output="again")
    assert f"continue with: {program()} --resume again" in capsys.readouterr().out
    whole = tuner.train(small, trial="small", epochs=3, all_data=all_data, output="whole")
    (row,) = tuner.run(resume="again").rows
    assert (row["status"], row["train_loss"]) == ("completed", whole.metrics["train_loss"])
    assert same(best(Path("again"))["weights"], best(Path("whole"))["weights"])


def test_a_training_that_fails_says_why_and_where_its_record_is(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("no such layer")

    monkeypatch.setattr("tuner.training.step.Steps.__call__", fail)
    with pytest.raises(tuner.ExecutionError, match=r"small: failed: .*no such layer; its record is in again"):
        tuner.train(small, trial="small", output="again")


def test_the_command_ends_with_the_exit_code_of_what_happened(
    small: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    changed_journal(small, lambda row: row.update(val_rmse=0.5))
    monkeypatch.setattr(sys, "argv", ["tune", "train", "--from", "study", "--exact", "--output", "again"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capfd.readouterr()
    assert ended.value.code == 1
    (line,) = printed.err.splitlines()
    assert line.startswith("error: --exact: the metrics are not those of the study: val_rmse 0.5 there and ")
    assert "saved: again/best.pt; tuner.load_best('again') gives the model" in printed.out


def test_a_metric_that_an_earlier_version_did_not_have_is_no_difference() -> None:
    assert differing({"val_loss": 0.5, "val_auroc": 0.9}, {"val_loss": 0.5}) == {}
    assert differing({"val_loss": 0.5}, {"val_loss": 0.4, "test_f1": 1.0}) == {
        "val_loss": (0.4, 0.5),
        "test_f1": (1.0, None),
    }
