"""What ``tune export`` makes is read back by Optuna's own API."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from tests.study.test_study import Interrupted, study
from tests.support.commands import refused
from tests.support.generated_study import write_study
from tuner import export
from tuner.errors import InputError
from tuner.records.epochs import read_epochs

ROOT = Path(__file__).parents[2]
VARIED = ("hidden_dim", "num_layers", "dropout", "lr", "batch_size")  # in studies that are written for tests


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'optuna.db'}"


def load(url: str, name: str) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=url)


def test_optuna_has_the_same_trials_values_states_parameters_and_epochs(tmp_path: Path, url: str) -> None:
    rows = write_study(tmp_path / "made", 12, epochs=3)
    (made,) = export(tmp_path / "made", optuna=url)
    found = load(url, "made")
    assert (made.study_name, sum(made.trials.values()), found.metric_names) == ("made", 12, ["val_loss"])
    assert {row["status"] for row in rows} == {"completed", "out_of_memory"}
    for row, trial in zip(rows, found.trials, strict=True):
        done = row["status"] == "completed"
        assert (
            (trial.state, trial.value) == (TrialState.COMPLETE, row["val_loss"]) if done else (TrialState.FAIL, None)
        )
        assert trial.params == {key: row[f"config/{key}"] for key in VARIED}
        assert (trial.user_attrs["trial_id"], trial.user_attrs["status"]) == (row["trial_id"], row["status"])
        assert trial.duration is not None
        assert trial.duration.total_seconds() == pytest.approx(row["ended_at"] - row["started_at"])
    curves: dict[str, dict[int, float]] = {}
    for line in read_epochs(tmp_path / "made" / "epochs.jsonl"):
        curves.setdefault(line.trial_id, {})
        if line.metrics:
            curves[line.trial_id][line.epoch] = line.metrics["val_loss"]
    assert {trial.user_attrs["trial_id"]: trial.intermediate_values for trial in found.trials} == curves
    best = min((row for row in rows if row["status"] == "completed"), key=lambda row: float(row["val_loss"]))
    assert found.best_trial.user_attrs["trial_id"] == best["trial_id"]
    tried = {key: [row[f"config/{key}"] for row in rows] for key in ("hidden_dim", "dropout", "lr")}
    fixed = {key: value for key, value in rows[0].items() if key.removeprefix("config/") not in VARIED}
    assert found.user_attrs["fixed"] == {key.removeprefix("config/"): fixed[key] for key in fixed if "/" in key}
    low_high = {key: (min(values), max(values)) for key, values in tried.items()}
    distributions = found.trials[0].distributions
    assert distributions["hidden_dim"] == IntDistribution(*low_high["hidden_dim"])
    assert distributions["dropout"] == FloatDistribution(*low_high["dropout"])
    assert distributions["lr"] == FloatDistribution(*low_high["lr"], log=True)


def test_the_database_has_what_optuna_itself_would_write(tmp_path: Path, url: str) -> None:
    write_study(tmp_path / "made", 12, epochs=3)
    export(tmp_path / "made", optuna=url)
    optuna.copy_study(from_study_name="made", from_storage=url, to_storage=url, to_study_name="by optuna")
    trials = [*load(url, "made").trials, *load(url, "by optuna").trials]
    first, second = ([{**vars(trial), "_trial_id": 0} for trial in part] for part in (trials[:12], trials[12:]))
    assert first == second
    assert len({trial._trial_id for trial in trials}) == 24


def test_a_workload_of_which_no_trial_has_ended_is_an_empty_study(tmp_path: Path, url: str) -> None:
    write_study(tmp_path / "made", 2)
    about = json.loads((tmp_path / "made" / "study.json").read_text())
    both = {"workload": ["toy", "later"], "metrics": {"toy": "val_loss", "later": "val_loss"}}
    (tmp_path / "made" / "study.json").write_text(json.dumps({**about, **both}))
    assert [(made.study_name, sum(made.trials.values())) for made in export(tmp_path / "made", optuna=url)] == [
        ("made-toy", 2),
        ("made-later", 0),
    ]


def test_a_study_of_tuners_own_comes_out_with_the_figures_of_its_csv(tmp_path: Path, url: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", *({"name": name} for name in "abcd"), executor=Interrupted, max_workers=2)
    export(tmp_path / "out", optuna=url)
    with (tmp_path / "out" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    trials = load(url, "out").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "FAIL", "FAIL"]
    assert [trial.user_attrs["status"] for trial in trials] == [row["status"] for row in rows]
    assert trials[0].value == float(rows[0]["val_loss"])
    assert [list(trial.intermediate_values) for trial in trials] == [[1, 2, 3], [1], [], []]
    assert trials[3].datetime_start == trials[3].datetime_complete  # it never started


def test_a_pruned_trial_and_text_come_through(tmp_path: Path, url: str) -> None:
    rows = write_study(tmp_path / "made", 3)
    for row, status, kind in zip(rows, ("completed", "pruned", "pruned"), ("sum", "mean", "mean"), strict=True):
        row |= {"status": status, "val_loss": 0.5, "config/kind": kind}
    del rows[2]["val_loss"]  # nothing was known of it yet
    (tmp_path / "made" / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    export(tmp_path / "made", optuna=url)
    trials = load(url, "made").trials
    assert [(trial.state.name, trial.value) for trial in trials] == [
        ("COMPLETE", 0.5),
        ("PRUNED", 0.5),
        ("PRUNED", None),
    ]
    assert trials[0].distributions["kind"] == CategoricalDistribution(["mean", "sum"])


def test_of_several_workloads_each_is_a_study(tmp_path: Path, url: str) -> None:
    rows = write_study(tmp_path / "made", 4)
    about: dict[str, Any] = json.loads((tmp_path / "made" / "study.json").read_text())
    about |= {"workload": ["toy", "toy-wide"], "metrics": {"toy": "val_loss", "toy-wide": "val_error"}}
    (tmp_path / "made" / "study.json").write_text(json.dumps(about))
    rows[3] |= {"workload": "toy-wide", "val_error": 2.0, "status": "completed"}
    (tmp_path / "made" / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = export(tmp_path / "made", optuna=url, study_name="both")
    assert [exported.study_name for exported in made] == ["both-toy", "both-toy-wide"]
    assert [len(load(url, exported.study_name).trials) for exported in made] == [3, 1]
    assert load(url, "both-toy-wide").best_value == 2.0


def test_a_name_that_is_taken_is_refused_and_nothing_changed(tmp_path: Path, url: str) -> None:
    write_study(tmp_path / "made", 2)
    export(tmp_path / "made", optuna=url)
    with pytest.raises(InputError, match="has a study 'made' already: give another name by study_name, or remove"):
        export(tmp_path / "made", optuna=url)
    assert len(load(url, "made").trials) == 2
    export(tmp_path / "made", optuna=url, study_name="again")
    assert len(optuna.get_all_study_names(url)) == 2


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        (None, "optuna: give a database"),
        (
            "x.db",
            "optuna='x.db': cannot be used: Could not parse SQLAlchemy URL .*; give another, such as sqlite:///",
        ),
        ("sqlite:///no/x.db", "optuna='sqlite:///no/x.db': cannot be used: unable to open database file"),
        ("sqlite:////tmp", "optuna='sqlite:////tmp': cannot be used: unable to open database file"),
        ("foo://me:secret@x/y", r"optuna='foo://me:\*\*\*@x/y': cannot be used: Can't load plugin"),
        (
            "foo://me:secret@x/y?password=secret",
            r"optuna='foo://me:\*\*\*@x/y\?…': cannot be used: Can't load plugin",
        ),
        ("mysql://me:secret@x:port/y", r"optuna='mysql://…': cannot be used: invalid literal for int"),
        (f"sqlite:///{ROOT / 'pyproject.toml'}", "optuna='.*': cannot be used: file is not a database"),
    ],
)
def test_where_it_cannot_go_is_refused(tmp_path: Path, storage: str | None, said: str) -> None:
    write_study(tmp_path / "made", 2)
    with pytest.raises(InputError, match=f"^{said}"):
        export(tmp_path / "made", optuna=storage)


def test_a_workload_whose_trials_have_not_ended_is_a_study_without_any(tmp_path: Path, url: str) -> None:
    write_study(tmp_path / "made", 2)
    about = json.loads((tmp_path / "made" / "study.json").read_text())
    about |= {"workload": ["toy", "later"], "metrics": {"toy": "val_loss", "later": "val_loss"}}
    (tmp_path / "made" / "study.json").write_text(json.dumps(about))
    assert [sum(exported.trials.values()) for exported in export(tmp_path / "made", optuna=url)] == [2, 0]


def test_what_is_no_study_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "export", ".", "--optuna", "sqlite:///x.db")
    assert line == "error: export .: holds no study.json; give the folder of a study"
    assert not (tmp_path / "x.db").exists()
