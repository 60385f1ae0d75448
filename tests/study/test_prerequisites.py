from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import tuner
from tests.support.toy import Toy
from tuner.cli.print_plan import forecast_text
from tuner.errors import ExecutionError, InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.hyperparameters import AnyHyperparameter, TextHyperparameter
from tuner.search.configurations import configurations
from tuner.spec.listed import choose
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.prerequisites import needed, train_prerequisites
from tuner.trial import Config, Configuration
from tuner.workloads.base import Workload
from tuner.workloads.protocols import finish_of
from tuner.workloads.task import Selection


class Pupil(Toy):
    """A toy that begins with the weights of another one, which is trained first."""

    name: ClassVar[str] = "pupil"
    hyperparameters: ClassVar[Mapping[str, AnyHyperparameter]] = {
        **Toy.hyperparameters,
        "of": TextHyperparameter("nobody", ""),
        "path": TextHyperparameter("", ""),
    }

    def prerequisites(self, config: Config) -> Mapping[str, Configuration]:
        if config["of"] == "nobody" or config["path"]:
            return {}
        fault = int(config["of"] == "failing")
        return {"path": Configuration(config["of"], {**config, "of": "nobody", "lr": 0.1, "fault": fault})}

    def build_model(self, config: Config, data: Any) -> nn.Module:
        model = super().build_model(config, data)
        if config["path"]:
            model.load_state_dict(torch.load(config["path"], weights_only=True)["weights"])
        return model


class Picky(Pupil):
    """A pupil whose data serve no weight decay."""

    def check(self, configurations: Sequence[Configuration], data: Any) -> None:
        for configuration in configurations:
            if configuration.values["weight_decay"]:
                raise InputError(f"{configuration.name}: the data do not serve it")


def choice(*listed: dict[str, Any], workload: Workload | None = None) -> Selection:
    workload = workload or Pupil()
    return Selection(workload, lambda: None, configurations(listed, workload.schema, finish=finish_of(workload)))


def trained(settings: Settings, *listed: dict[str, Any]) -> tuple[list[Selection], Settings]:
    found = train_prerequisites(StudySpec([choice(*listed)], settings, command="tune"), InProcessExecutor)
    return list(found.selections), found.settings


def test_what_several_configurations_need_is_trained_once_and_its_weights_are_theirs(tmp_path: Path) -> None:
    settings = Settings(output=str(tmp_path / "study"), device="cpu", seeds=3, report=False)
    own = {"of": "teacher"}
    (filled,), _ = trained(settings, {"name": "a", "lr": 0.2, **own}, {"name": "b", **own}, {"name": "alone"})
    best = tmp_path / "study-teacher" / "best.pt"
    assert [configuration.values["path"] for configuration in filled.configurations] == [str(best), str(best), ""]
    rows = (tmp_path / "study-teacher" / "results.csv").read_text().splitlines()
    assert len(rows) == 2  # the header and one trial: of one seed, too
    assert filled.workload.build_model(filled.configurations[0].values, None).weight.item() != pytest.approx(0.0)


def test_a_study_that_needs_nothing_is_left_alone(tmp_path: Path) -> None:
    settings = Settings(output=str(tmp_path / "study"))
    (left,), same = trained(settings, {"name": "a"})
    assert [configuration.values["path"] for configuration in left.configurations] == [""]
    assert same is settings
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_trained_ends_everything_with_the_reason(tmp_path: Path) -> None:
    settings = Settings(model_memory_gb=0.5, output=str(tmp_path / "study"), device="cpu", report=False)
    reason = "failing could not be trained: failed: .* ValueError: .*: the same command and max_failures=1 continues"
    with pytest.raises(ExecutionError, match=reason):
        trained(settings, {"name": "a", "of": "failing"})


def test_what_the_data_do_not_serve_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(output=str(tmp_path / "study"), device="cpu", report=False)
    bad = choice({"name": "a", "of": "teacher", "weight_decay": 0.1}, workload=Picky())
    with pytest.raises(InputError, match=r"^a: the data do not serve it$"):
        train_prerequisites(StudySpec([bad], settings, command="tune"), InProcessExecutor)
    assert (capsys.readouterr().out, list(tmp_path.iterdir())) == ("", [])


def test_a_dry_run_shows_the_plan_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(output=str(tmp_path / "study"), device="cpu", dry_run=True)
    (left,), _ = trained(settings, {"name": "a", "of": "teacher"})
    assert left.configurations[0].values["path"] == ""
    assert "teacher is trained first, once, for a" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_two_of_one_name_that_differ_are_refused(tmp_path: Path) -> None:
    settings = Settings(output=str(tmp_path / "study"), device="cpu")
    with pytest.raises(InputError, match="teacher is needed with several values of epochs: give one to all"):
        trained(settings, {"name": "a", "of": "teacher"}, {"name": "b", "of": "teacher", "epochs": 2})


def test_the_time_that_it_takes_is_taken_off_the_studys_limit(tmp_path: Path) -> None:
    settings = Settings(output=str(tmp_path / "study"), device="cpu", time_limit="10m", report=False)
    _, left = trained(settings, {"name": "a", "of": "teacher"})
    assert isinstance(left.time_limit, float)
    assert 0 < left.time_limit < 600


def test_what_the_study_would_refuse_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    class Strict(Pupil):
        def check(self, configurations: Sequence[Configuration], data: Any) -> None:
            if any(configuration.name == "bad" for configuration in configurations):
                raise InputError("bad: no such thing")

    workload = Strict()
    listed = configurations(
        [{"name": "a", "of": "teacher"}, {"name": "bad"}], workload.schema, finish=finish_of(workload)
    )
    settings = Settings(output=str(tmp_path / "study"), device="cpu", report=False)
    with pytest.raises(InputError, match="bad: no such thing"):
        train_prerequisites(
            StudySpec([Selection(workload, lambda: None, listed)], settings, command="tune"), InProcessExecutor
        )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_later_one_needs_is_looked_at_before_the_first_is_trained(tmp_path: Path) -> None:
    (tmp_path / "study-second").mkdir()
    (tmp_path / "study-second" / "results.csv").touch()
    settings = Settings(output=str(tmp_path / "study"), device="cpu", report=False)
    with pytest.raises(InputError, match="study-second"):
        trained(settings, {"name": "a", "of": "first"}, {"name": "b", "of": "second"})
    assert [path.name for path in tmp_path.iterdir()] == ["study-second"]


def test_the_same_call_again_takes_what_is_trained_already(tmp_path: Path) -> None:
    settings = Settings(output=str(tmp_path / "study"), device="cpu", report=False)
    (before,), _ = trained(settings, {"name": "a", "of": "teacher"})
    journal = (tmp_path / "study-teacher" / "attempts.jsonl").read_bytes()
    (after,), _ = trained(settings, {"name": "a", "of": "teacher"})
    assert after.configurations == before.configurations
    assert (tmp_path / "study-teacher" / "attempts.jsonl").read_bytes() == journal
    with pytest.raises(InputError, match="study-teacher"):
        trained(settings, {"name": "a", "of": "teacher", "epochs": 5})


def test_the_same_call_goes_on_with_what_was_interrupted(tmp_path: Path) -> None:
    settings = Settings(
        model_memory_gb=0.5, output=str(tmp_path / "study"), device="cpu", report=False, max_failures=1
    )
    for _ in range(2):
        with pytest.raises(
            ExecutionError, match=r"failing could not be trained: .*: the same command and max_failures=1 continues"
        ):
            trained(settings.changed(max_failures=0), {"name": "a", "of": "failing"})
    with pytest.raises(ExecutionError, match="failing could not be trained"):
        trained(settings, {"name": "a", "of": "failing"})
    assert len((tmp_path / "study-failing" / "attempts.jsonl").read_text().splitlines()) == 2


def test_what_has_diverged_is_not_said_to_be_gone_on_with(tmp_path: Path) -> None:
    class Steep(Pupil):
        def prerequisites(self, config: Config) -> Mapping[str, Configuration]:
            return {
                key: replace(teacher, values={**teacher.values, "fault": 3})
                for key, teacher in super().prerequisites(config).items()
            }

    settings = Settings(model_memory_gb=0.5, output=str(tmp_path / "study"), device="cpu", report=False)
    for _ in range(2):
        with pytest.raises(
            ExecutionError, match=r"diverged: .*, and remove \S*/study-teacher or give another output$"
        ):
            train_prerequisites(
                StudySpec([choice({"of": "teacher"}, workload=Steep())], settings, command="tune"), InProcessExecutor
            )


def test_how_to_go_on_names_the_folder_and_who_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(model_memory_gb=0.5, device="cpu", report=False)
    with pytest.raises(
        ExecutionError,
        match=r"tuner --resume (results/.*-failing) --max-failures 1 continues it; .* with path: \1/best\.pt in what",
    ):
        trained(settings, {"name": "b", "of": "failing"})


def test_a_plan_and_estimates_show_what_is_trained_first(tmp_path: Path) -> None:
    (tmp_path / "pupils.json").write_text('{"configurations": [{"name": "a", "of": "teacher"}, {"name": "alone"}]}')
    options: dict[str, Any] = {"workload": Pupil(), "config": str(tmp_path / "pupils.json"), "device": "cpu"}
    assert [name for name, _ in tuner.estimate(**options, memory_estimation="static")] == ["teacher", "a", "alone"]
    plan = tuner.plan(**options, model_memory_gb=0.5)
    assert [request.trial.name for request in plan.first] == ["teacher"]
    assert "first      teacher is trained, once and alone: 0.50 GB" in forecast_text(plan)


def test_it_has_its_own_number_of_epochs(tmp_path: Path) -> None:
    settings = Settings(output=str(tmp_path / "study"), device="cpu", epochs=1, report=False)
    _, left = trained(settings, {"name": "a", "of": "teacher"})
    (row,) = csv.DictReader((tmp_path / "study-teacher" / "results.csv").read_text().splitlines())
    assert (row["epochs"], left.epochs) == ("3", 1)


def test_teachers_of_both_stages_come_before_their_students() -> None:
    ((selection,), _) = choose(Settings(workload="kd-gat", mode="distillation"), 0)
    names = [teacher.name for teacher in needed(selection)]
    assert names == ["classifier-teacher-without-IDs", "autoencoder-teacher-without-IDs"]
