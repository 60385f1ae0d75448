"""Studies that search, in this process: what is suggested, pruned, refused, told and gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.support.toy import Batched, Picky, Toy
from tests.support.worker_process import measure_here
from tuner.decisions.events import Bounds, CapacityObserved, Ended, Opened, Planned, PruneAsked, Reported, Started
from tuner.decisions.packer import Packer
from tuner.decisions.plan import make_plan
from tuner.decisions.policies import Engine
from tuner.decisions.state import State
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.objective import Objective
from tuner.records.study_record import UNKNOWN, read_study
from tuner.search.configurations import configurations
from tuner.search.optuna_names import make_sampler
from tuner.search.optuna_trials import OptunaTrials, new_study
from tuner.search.searchers import State as Ending
from tuner.search.spaces import parse_space
from tuner.spec.searched import choose_searched
from tuner.spec.settings import Settings
from tuner.spec.specify import specify
from tuner.spec.study_spec import Search, StudySpec
from tuner.study.needs import Estimates, Needs
from tuner.study.pruning import Pruning
from tuner.study.result import StudyResult
from tuner.study.sampled import Sampled
from tuner.study.study import run_study
from tuner.trial import GB, Device, EpochReport, MemoryEstimate, Outcome, Request, Trial
from tuner.workloads.base import Workload
from tuner.workloads.task import Selection, TrainingTask

OPTIONS: dict[str, Any] = {"data": "synthetic", "search": "random", "num_samples": 3}
SPACE = {"lr": {"loguniform": [0.001, 0.1]}}


class Spy(OptunaTrials):
    """Optuna, and what it was told."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told: dict[str, tuple[Ending, tuple[float | None, ...]]] = {}
        self.recalled: list[str] = []

    def tell(self, trial_id: str, state: Ending, *values: float | None, excess: Sequence[float] = ()) -> None:
        self.told[trial_id] = state, values
        super().tell(trial_id, state, *values, excess=excess)

    def recall(self, trial_id: str, values: Mapping[str, Any]) -> None:
        self.recalled.append(trial_id)
        super().recall(trial_id, values)


class Stopping(InProcessExecutor):
    """A user presses Ctrl-C as the seventh trial begins to train."""

    def poll(self, timeout_seconds: float) -> list[Any]:
        events = super().poll(timeout_seconds)
        if any(isinstance(event, EpochReport) and event.trial_id == "t007" for event, _ in events):
            raise KeyboardInterrupt
        return events


def searched(
    folder: Path,
    space: dict[str, Any],
    *,
    number: int = 10,
    before: Sequence[Mapping[str, Any]] | None = None,
    workload: Workload | None = None,
    executor: type = InProcessExecutor,
    searcher: type[Spy] = Spy,
    **settings: Any,
) -> tuple[StudyResult, Spy]:
    workload = workload or Toy()
    own = Settings(
        **{
            "output": str(folder),
            "device": "cpu",
            "gpu_memory_buffer_gb": 0,
            "report": False,
            "search": "optuna",
            "num_samples": number,
            "max_workers": 1,
            **({} if settings.get("auto_memory") else {"model_memory_gb": 0.1}),
            **settings,
        }
    )
    spy = searcher(new_study(make_sampler("tpe", seed=1)), parse_space(space, workload.schema, "space"))
    result = run_study(
        StudySpec(
            [Selection(workload, lambda: None, configurations(before, workload.schema) if before else [])],
            own,
            label="test",
            command="a test",
            search=Search(workload, spy, {"epochs": 3}),
        ),
        executor(),
    )
    return result, spy


def test_suggestions_run_until_there_are_so_many_and_their_ends_are_told(tmp_path: Path) -> None:
    result, searcher = searched(
        tmp_path / "out", {"lr": {"loguniform": [1e-3, 1]}, "fault": {"choice": [0, 0, 0, 3]}}
    )
    rows = {row["trial_id"]: row for row in result.rows}
    assert sorted(rows) == [f"t{number:03d}" for number in range(1, 11)]
    states = {"completed": "completed", "diverged": "unfit"}
    assert {key: state for key, (state, _) in searcher.told.items()} == {
        key: states[row["status"]] for key, row in rows.items()
    }
    assert {row["status"] for row in rows.values()} == {"completed", "diverged"}
    known = read_study(tmp_path / "out").configurations
    assert [one.values["lr"] for one in known] == [rows[key]["config/lr"] for key in sorted(rows)]
    assert known[0].name == "suggestion-1"


def test_a_search_that_was_broken_off_goes_on_with_what_it_had(tmp_path: Path) -> None:
    space, folder = {"lr": {"loguniform": [1e-3, 1]}}, tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        searched(folder, space, executor=Stopping)
    before = read_study(folder).configurations
    assert len(before) == 7
    result, searcher = searched(folder, space, before=before, number=12, output=None, resume=str(folder))
    assert searcher.recalled == [f"t{number:03d}" for number in range(1, 8)]
    assert len(searcher.told) == len(result.rows) == 12
    assert {row["status"] for row in result.rows} == {"completed"}
    assert {row["attempts"] for row in result.rows} == {1, 2}, "of the seventh the first was interrupted"
    lrs = {row["trial_id"]: row["config/lr"] for row in result.rows}
    assert [lrs[f"t{number:03d}"] for number in range(1, 8)] == [one.values["lr"] for one in before]
    assert (len(read_study(folder).configurations), read_study(folder).settings["num_samples"]) == (12, 12)


def test_a_suggestion_that_fits_no_device_is_told_and_not_run(tmp_path: Path) -> None:
    space = {"batch_size": {"choice": [8, 100_000]}, "epochs": 1}  # 100,000 samples take 12 GB
    result, searcher = searched(
        tmp_path / "out", space, workload=Batched(), auto_memory=True, calibration=False, device_memory_gb=2.0
    )
    large = [row for row in result.rows if row["config/batch_size"] == 100_000]
    assert 0 < len(large) < 10
    assert {(row["status"], row["attempts"], row["epochs"]) for row in large} == {("pruned", 0, 0)}
    assert "not run: needs 13." in large[0]["error"] and "no device has more than 2.00 GB for it" in large[0]["error"]
    assert {searcher.told[row["trial_id"]] for row in large} == {("unfit", (None,))}
    assert result.exit_code == 0
    with pytest.raises(InputError, match=r"a trial needs 13.*GB, but cpu has 2.00 GB"):
        space = {"batch_size": {"choice": [100_000]}}
        searched(tmp_path / "no", space, workload=Batched(), auto_memory=True, device_memory_gb=2.0)
    assert not (tmp_path / "no").exists()


def test_asha_prunes_what_is_worse_and_keeps_its_best_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.training.checkpoints.Checkpoint.faults", ("checkpoint not written: it is full",))
    listed = [{"name": f"{lr}", "lr": lr, "epochs": 40} for lr in (0.3, 0.0001, 0.0002, 0.3003)]
    result = run_study(
        StudySpec(
            [Selection(Toy(), lambda: None, configurations(listed, Toy.hyperparameters))],
            Settings(
                output=str(tmp_path / "out"),
                device="cpu",
                gpu_memory_buffer_gb=0,
                model_memory_gb=0.1,
                scheduler="asha",
                max_workers=1,
                report=False,
            ),
            label="test",
            command="a test",
        ),
        InProcessExecutor(),
    )
    rows = {row["name"]: row for row in result.rows}
    assert (rows["0.3"]["status"], rows["0.3"]["epochs"]) == ("completed", 40)
    for name in ("0.0001", "0.0002"):
        assert (rows[name]["status"], rows[name]["epochs"], rows[name]["best_epoch"]) == ("pruned", 1, 1)
        assert rows[name]["error"] == "asha ended it after 1 of 40 epochs; checkpoint not written: it is full"
        assert rows[name]["val_loss"] > 0 and rows[name]["peak_memory_gb"] > 0 and rows[name].get("test_loss") is None
    assert result.exit_code == 0
    assert not list((tmp_path / "out" / "checkpoints").iterdir())


def test_a_search_goes_on_after_a_trial_that_needs_more_than_any_device(gpu_16gb: Device) -> None:
    """As one that is resumed may begin with such a trial, and it gets a whole device."""
    workload, packer = Toy(), Packer()
    search = Search(
        workload, Spy(new_study(make_sampler("random", seed=0)), parse_space(SPACE, workload.schema, "")), {}
    )
    settings, tasks = Settings(num_samples=2, model_memory_gb=1), {"toy": TrainingTask(workload, None)}
    request = Request(Trial("t001", "toy", "t001", {"lr": 0.1}, 0), MemoryEstimate("learned"), 40 * GB)
    sampled = Sampled(Needs(tasks, [gpu_16gb], settings), Estimates(), packer, search)
    engine = Engine(State(), [sampled, packer])
    plan = make_plan([gpu_16gb], [GB], packing="per-trial", buffer_bytes=0)
    for event in (Planned((request,), {}), Opened(plan, (request,)), CapacityObserved(Bounds({}))):
        engine.take(event)
    started = engine.decide(0.0)
    assert isinstance(started, Started)
    outcome = Outcome(started.placement.trial, "completed", started.placement)
    for event in (started, CapacityObserved(None), Ended(outcome.trial, outcome.result, {}, outcome=outcome)):
        engine.take(event)
    assert isinstance(engine.decide(0.0), Planned)


@pytest.mark.parametrize(("workers", "asked"), [(1, 1), (3, 3), (100, 8)])
def test_no_more_is_suggested_before_anything_runs_than_can_run_at_once(
    workers: int, asked: int, gpu_16gb: Device
) -> None:
    workload = Toy()
    search = Search(workload, Spy(new_study(make_sampler("tpe")), parse_space(SPACE, workload.schema, "")), {})
    settings, tasks = Settings(num_samples=20, model_memory_gb=1), {"toy": TrainingTask(workload, None)}
    sampled = Sampled(Needs(tasks, [gpu_16gb], settings), Estimates(), Packer(), search)
    engine = Engine(State(), [sampled])
    planned: list[int] = []
    sampled.begin(engine, lambda fit: planned.append(len(fit)) or workers)  # type: ignore[func-returns-value]
    assert len(engine.state.waiting) == len(sampled.begun) == asked
    assert planned == list(range(1, asked + 1)), "the plan is made anew with each"


def test_what_asha_has_stopped_stays_stopped_over_attempts_and_studies(gpu_16gb: Device) -> None:
    trials = [Trial(trial_id, "toy", trial_id, {"epochs": 16}, 0) for trial_id in "ab"]
    requests = tuple(Request(trial, MemoryEstimate("given"), GB) for trial in trials)
    plan = make_plan([gpu_16gb], [GB, GB], packing="per-trial", buffer_bytes=0)

    def said(trial_id: str, epoch: int, value: float | None = None) -> Reported:
        return Reported(EpochReport(trial_id, epoch, 16, {} if value is None else {"val_loss": value}), 0.0)

    def new(*earlier: Reported) -> Engine:
        packer = Packer()
        pruning = Pruning({"toy": Objective("val_loss")}, Settings(scheduler="asha"))
        engine = Engine(State(), [pruning, packer])
        for event in (Planned(requests, {}), *earlier, Opened(plan, requests), CapacityObserved(Bounds({}))):
            engine.take(event)
        return engine

    def stops(engine: Engine, *events: Reported) -> list[str]:
        """Who is asked to end, if both trials start and report this."""
        while isinstance(started := engine.decide(0.0), Started):
            engine.take(started)
        for event in events:
            engine.take(event)
        return [asked.trial_id] if isinstance(asked := engine.decide(0.0), PruneAsked) else []

    earlier = said("a", 1, 1.0), said("b", 1, 2.0)
    assert stops(new(), *earlier) == ["b"]
    # "b" ran out of memory, or its study ended, before it did
    assert stops(new(*earlier), said("b", 0)) == [], "then it would have no metrics at all"
    assert stops(new(*earlier), said("b", 1, 2.0)) == ["b"]
    assert stops(new(*earlier), said("b", 2, 2.0)) == ["b"]
    assert stops(new(*earlier), said("a", 16, 9.0), said("b", 16, 9.0)) == [], "a last epoch stops nothing"


def test_a_search_that_ends_early_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Tired(Spy):
        def ask(self, trial_id: str) -> Mapping[str, Any] | None:
            return super().ask(trial_id) if trial_id < "t004" else None

    result, _ = searched(tmp_path / "out", {"lr": {"uniform": [0.01, 0.1]}}, searcher=Tired)
    assert [row["status"] for row in result.rows] == ["completed"] * 3
    assert "search: ended after 3 of 10 trials, as it suggests none that can be used\n" in capsys.readouterr().out


def test_a_search_that_ends_early_blames_no_suggestion_before_one_that_was_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Tired(Spy):
        batches = iter((9, 8))

        def ask(self, trial_id: str) -> Mapping[str, Any] | None:
            batch = next(self.batches, None)
            return batch and {**(super().ask(trial_id) or {}), "batch_size": batch}

    result, _ = searched(tmp_path / "out", {"accumulation": {"choice": [2]}}, workload=Batched(), searcher=Tired)
    assert [row["config/batch_size"] for row in result.rows] == [8]
    assert "search: ended after 1 of 10 trials, as it suggests none that can be used\n" in capsys.readouterr().out


def test_values_that_do_not_go_together_are_no_trial(tmp_path: Path) -> None:
    space = {"batch_size": {"choice": [8, 9]}, "accumulation": {"choice": [2]}, "epochs": 1}
    result, _ = searched(tmp_path / "out", space, workload=Batched(), number=5)
    assert {row["config/batch_size"] for row in result.rows} == {8}
    assert len(result.rows) == 5
    with pytest.raises(InputError, match=r"none of its suggestions can be used: .*accumulation 2 does not divide"):
        searched(tmp_path / "no", {**space, "batch_size": {"choice": [9]}}, workload=Batched())


def test_a_suggestion_that_cannot_be_estimated_is_no_trial_and_ends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_here(monkeypatch)
    space = {"batch_size": 8, "weight_decay": {"choice": [0.0, 0.1]}, "epochs": 1}
    options: dict[str, Any] = {"workload": Picky(), "auto_memory": True, "calibration": False}
    options["memory_estimation"] = "traced"
    result, _ = searched(tmp_path / "out", space, number=6, **options)
    assert [(row["status"], row["config/weight_decay"]) for row in result.rows] == [("completed", 0.0)] * 6
    with pytest.raises(InputError, match=r"can be used: suggestion-1: workload picky: .*no such model"):
        searched(tmp_path / "no", {**space, "weight_decay": {"choice": [0.1]}}, **options)
    assert not (tmp_path / "no").exists()


def chosen(**options: Any) -> StudySpec:
    return choose_searched(Settings.of({**OPTIONS, **options}), UNKNOWN)


@pytest.fixture
def space_file(tmp_path: Path) -> str:
    file = tmp_path / "own.yaml"
    file.write_text(
        "defaults: {epochs: 2}\nspace:\n  hidden_dim: {choice: [8, 16]}\n  lr: {loguniform: [1e-4, 0.1]}\n"
    )
    return str(file)


def test_random_samples_are_configurations_with_defaults_and_overrides(space_file: str) -> None:
    spec = chosen(config=space_file, overrides=("lr=0.5",), num_samples=2)
    (choice,), label, live = spec.selections, spec.label, spec.search
    assert (label, live, [one.name for one in choice.configurations]) == (
        "random-own",
        None,
        ["sample-1", "sample-2"],
    )
    assert {(one.values["lr"], one.values["epochs"]) for one in choice.configurations} == {(0.5, 2)}
    assert {one.values["hidden_dim"] for one in choice.configurations} == {8, 16}, "without repeating any"
    (grid,) = chosen(search="grid", num_samples=None, config=space_file, overrides=("lr=0.5",)).selections
    assert [one.name for one in grid.configurations] == ["hidden_dim=8", "hidden_dim=16"]


def test_the_scales_of_a_spaces_ranges_are_known_to_the_study_and_lists_have_none(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        "lr: {loguniform: [0.001, 0.1]}\ndropout: {uniform: [0.0, 0.5]}\nhidden_dim: {choice: [16, 32]}\n"
    )
    asked = Settings(space=str(file), search="random", num_samples=2, data="synthetic")
    assert specify(asked).scales == {"lr": "log", "dropout": "linear"}
    assert specify(Settings(data="synthetic")).scales == {}


def test_samples_are_added_to_a_random_study(tmp_path: Path) -> None:
    common: dict[str, Any] = {"device": "cpu", "gpu_memory_buffer_gb": 0, "model_memory_gb": 0.1, "report": False}

    def sampled(number: int, **folder: str) -> list[str]:
        listed = [{"name": f"sample-{index}", "lr": index / 10, "epochs": 1} for index in range(1, number + 1)]
        own = Settings(**common, **folder, search="random", num_samples=number)
        choices = [Selection(Toy(), lambda: None, configurations(listed, Toy.hyperparameters))]
        result = run_study(StudySpec(choices, own, label="", command="", options={}), InProcessExecutor())
        return sorted(row["trial_id"] for row in result.rows)

    assert sampled(2, output=str(tmp_path / "out")) == ["t001", "t002"]
    assert sampled(3, resume=str(tmp_path / "out")) == ["t001", "t002", "t003"]
    assert len((tmp_path / "out" / "attempts.jsonl").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "out" / "study.json").read_text())["options"]["num_samples"] == 3
    with pytest.raises(InputError, match=r"its configurations are different \(it has 3, not 2\)"):
        sampled(2, resume=str(tmp_path / "out"))


def test_a_mode_that_is_a_grid_is_a_space() -> None:
    (choice,) = chosen(mode="full", num_samples=5).selections
    assert len({tuple(one.values.items()) for one in choice.configurations}) == 5
    spec = chosen(mode="full", search="optuna")
    (choice,), label, live = spec.selections, spec.label, spec.search
    assert (choice.configurations, label) == ([], "tpe-full")
    assert live and live.workload.name == choice.workload.name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "bayes"}, "search='bayes': did you mean cmaes"),
        ({"num_samples": None}, "search='random': say by num_samples how many"),
        ({"num_samples": 0}, "num_samples=0: must be at least 1"),
        ({"search": "grid"}, "num_samples=3: search='grid' tries every combination: leave it out"),
        ({"search": "optuna", "seeds": 2}, "seeds=2: search='tpe' trains each suggestion once: leave it out"),
        ({"search": "optuna", "limit": 2}, "limit=2: has no effect with search='tpe'"),
        ({"search": "optuna", "workload": ("graphsage", "gt-ssl")}, "takes one workload, not graphsage, gt-ssl"),
        (
            {"search": "gp", "space": {"lr": {"grid_search": [0.1, 0.2]}}},
            "space: lr: grid_search has all combinations tried, which search='gp' does not: give {choice:",
        ),
        (
            {"search": "bruteforce", "space": {"lr": {"loguniform": [0.1, 0.2]}}},
            "space: lr: a range without a step has no grid: give {choice:",
        ),
        (
            {"search": None, "num_samples": None, "search_options": {"a": 1}},
            r"search_options=.'a=1'.: has no effect without space or",
        ),
        (
            {"search": "tpe", "search_options": {"gama": 1}},
            "search_options='gama=1': TPESampler has no option 'gama'",
        ),
        ({"scheduler": "threshold"}, "scheduler='threshold': Either lower or upper must be specified"),
        ({"mode": "quick"}, "quick.yaml: a list of configurations cannot be searched: give 'space'"),
        ({"space": {"lr": {"uniform": [1, 0]}}}, "space: lr: uniform .* must rise"),
        ({"space": {"lr": 0.1}, "config": "x.yaml"}, "space and config were both given: leave one of them out"),
        ({"space": {"lr": 0.1}}, "num_samples=3: space has 1: give at most 1"),
        (
            {"search": "optuna", "space": {"batch_size": "auto"}},
            "space: auto: a batch is found for trials that are known",
        ),
    ],
)
def test_what_cannot_be_searched_says_why(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen(**options)


def test_a_space_is_not_a_list(space_file: str) -> None:
    with pytest.raises(
        InputError, match=r"own.yaml: it has a 'space', which is searched: give search='grid', random"
    ):
        tuner.estimate(config=space_file)
    for option in ({"points": [{"lr": 0.1}]}, {"num_samples": 3}):
        with pytest.raises(InputError, match="has no effect without space"):
            tuner.run(**option)
    with pytest.raises(InputError, match="scheduler='hyperban': did you mean hyperband"):
        tuner.run(scheduler="hyperban")


@pytest.mark.parametrize("search", ["grid", "random", "optuna"])
def test_an_object_of_ones_own_is_searched_as_it_is(search: str) -> None:
    own, number = Toy(), None if search == "grid" else 2
    settings = Settings(workload=own, space={"lr": {"choice": [0.1, 0.2]}}, search=search, num_samples=number)
    spec = choose_searched(settings, UNKNOWN)
    (choice,), live = spec.selections, spec.search
    assert choice.workload is own
    assert (live is None) == (search != "optuna")
    assert live is None or live.workload is own
    assert len(choice.configurations) == (0 if live else 2)
