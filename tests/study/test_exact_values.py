"""Studies with values at the edges: what is reported is ranked, recorded and read exactly, or refused in one line."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import optuna
import pytest

import tuner
import tuner.optuna
from tests.study.test_functions import CALL
from tuner.errors import InputError

LOSSES = (0.9999991, 0.9999994, 0.9999992)
UNWRITABLE = ("caf\udce9.csv", "a\0b")


def losing(config: dict[str, Any]) -> dict[str, float]:
    return {"loss": LOSSES[config["number"]], "score": 0.0}


def far(config: dict[str, Any]) -> dict[str, float]:
    return {"score": (1.6e308 + 1e307 * random.random()) * config["sign"]}


def study(folder: Path, function: Any, config: Any, **options: Any) -> Any:
    return tuner.run(**{"workload": function, **CALL, "config": config, "output": folder, **options})


def test_a_metric_of_any_size_is_recorded_and_read_exactly(tmp_path: Path) -> None:
    largest = {"score": 1.0, "ppl": math.exp(705), "least": -1.7976931348623157e308, "small": 5e-324, "nan": math.nan}
    study(tmp_path / "out", lambda config: tuner.report(**largest), [{"a": 1}])
    assert tuner.results(tmp_path / "out").iloc[0][["ppl", "least", "small"]].to_dict() == {
        name: largest[name] for name in ("ppl", "least", "small")
    }
    tuner.run(lambda config: None, resume=tmp_path / "out")


def test_metrics_are_ranked_by_their_exact_values_also_after_resuming(tmp_path: Path) -> None:
    config = [{"number": number} for number in range(3)]
    result = study(tmp_path / "out", losing, config, metric="loss", direction="minimize", seeds=1)
    assert (result.best_value, result.best_config) == (0.9999991, {"number": 0})
    result = study(tmp_path / "most", losing, config, metric="loss", direction="maximize")
    assert (result.best_value, result.best["loss"], result.best_config) == (0.9999994, 0.9999994, {"number": 1})
    again = tuner.run(losing, resume=tmp_path / "most")
    assert [row.metrics["loss"] for row in again.trials] == sorted(LOSSES, reverse=True)
    (tmp_path / "most" / "results.csv").rename(tmp_path / "table.csv")
    assert set(tuner.results(tmp_path / "table.csv").loss) == set(LOSSES)


def test_a_journal_with_rounded_values_is_resumed(tmp_path: Path) -> None:
    study(tmp_path / "out", losing, [{"number": 0}, {"number": 1}], metric="loss", direction="maximize")
    journal = tmp_path / "out" / "attempts.jsonl"
    first, _ = journal.read_text().splitlines(keepends=True)
    journal.write_text(first.replace("0.9999991", "0.999999"))
    result = tuner.run(losing, resume=tmp_path / "out")
    assert [row.metrics["loss"] for row in result.trials] == [0.9999994, 0.999999]


@pytest.mark.parametrize("text", UNWRITABLE)
@pytest.mark.parametrize("place", ["key", "value", "name", "choice", "key of a space", "default"])
def test_what_no_file_can_hold_is_refused_before_anything_is_written(tmp_path: Path, text: str, place: str) -> None:
    given: dict[str, Any] = {
        "key": {"config": [{text: 1}]},
        "value": {"config": [{"model": {"file": text}}]},
        "name": {"config": [{"name": text, "a": 1}]},
        "choice": {"space": {"a": {"choice": ["b", text]}}, "search": "grid"},
        "key of a space": {"space": {text: {"choice": [1, 2]}}, "search": "grid"},
        "default": {"config": {"defaults": {"model": {"file": text}}, "configurations": [{"a": 1}]}},
    }[place]
    with pytest.raises(InputError, match="has a character 0 or bytes that are not UTF-8: rename it"):
        tuner.run(**{"workload": losing, **CALL, "output": tmp_path / "out", **given})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"metrics": {"a\0b": 1.0}}, "no metric can be called 'a\\x00b': choose another name"),
        ({"metrics": {"a\udce9": 1.0}}, "no metric can be called 'a\\udce9': choose another name"),
        ({"epoch": 2**63}, "epoch is 9223372036854775808: give at most 9223372036854775806"),
    ],
)
def test_a_report_that_no_file_can_hold_fails_its_trial_alone(tmp_path: Path, said: Any, error: str) -> None:
    def reporting(config: dict[str, Any]) -> None:
        tuner.report({"score": 1.0} | said.get("metrics", {}), epoch=said.get("epoch"))

    result = study(tmp_path / "out", reporting, [{"a": 1}])
    assert [row.error for row in result.trials] == [f"training: tuner.report: {error}"]
    assert list(tuner.results(tmp_path / "out").status) == ["failed"]


@pytest.mark.parametrize("text", UNWRITABLE)
def test_an_objective_that_suggests_what_no_file_can_hold_fails_its_trial_alone(tmp_path: Path, text: str) -> None:
    made = optuna.create_study()
    folder = tmp_path / "out"
    result = tuner.optuna.optimize(
        made, lambda trial: len(trial.suggest_categorical("x", [text])), n_trials=1, output=folder, in_process=True
    )
    assert "has a character 0 or bytes that are not UTF-8: rename it" in result.trials[0].error
    assert list(tuner.results(folder).status) == ["failed"]


def test_a_study_under_a_clock_before_1970_is_read_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: began - 3e9)
        study(tmp_path / "out", losing, [{"number": 0}])
    assert json.loads((tmp_path / "out" / "attempts.jsonl").read_text())["started_at"] < 0
    assert tuner.run(losing, resume=tmp_path / "out").best_value == 0.0


def test_whole_numbers_that_pandas_cannot_have_are_in_results_as_they_are(tmp_path: Path) -> None:
    study(tmp_path / "out", lambda config: {"score": 1.0}, [{"a": 2**64 - 1}, {"a": -(2**70)}, {"b": 1}])
    assert set(tuner.results(tmp_path / "out")["config/a"].dropna()) == {2**64 - 1, -(2**70)}
    (tmp_path / "out" / "results.csv").rename(tmp_path / "table.csv")
    assert set(tuner.results(tmp_path / "table.csv")["config/a"].dropna()) == {2**64 - 1, -(2**70)}


def test_seeds_whose_values_have_no_finite_sum_are_compared(tmp_path: Path) -> None:
    result = study(tmp_path / "out", far, [{"sign": 1}, {"sign": -1}], seeds=2)
    assert result.best_value > 1.6e308
    assert list(tuner.compare(tmp_path / "out").verdict) == ["best", "worse"]


@pytest.mark.long
def test_every_reader_reads_what_is_at_the_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, folder = time.time(), tmp_path / "out"
    monkeypatch.setattr(time, "time", lambda: began - 3e9)
    study(folder, far, [{"sign": 1, "a": 2**64 - 1}, {"sign": -1, "a": -(2**70)}], seeds=2)
    tuner.write_report(folder)
    assert "too far apart to be compared" in (folder / "report.html").read_text()
    tuner.export(folder, optuna=f"sqlite:///{folder}/optuna.db")
    (exported,) = optuna.get_all_study_summaries(f"sqlite:///{folder}/optuna.db")
    assert exported.best_trial is not None and 1.6e308 < (exported.best_trial.value or 0) < 1.7e308
