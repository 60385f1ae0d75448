"""A study in pieces tries and decides what it does at once: one worker, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import pytest

import tuner
from tests.support.toy import Batched
from tuner.decisions.events import Reported
from tuner.search.optuna_names import SEARCHES

SPACE: dict[str, Any] = {
    "x": {"uniform": [0, 1]},
    "kind": {"choice": ["a", "b"]},
    "y": {"int": [1, 4], "if": {"kind": "b"}},
}
STEPS: dict[str, Any] = {"x": {"uniform": [0, 1], "step": 0.25}, "kind": {"choice": ["a", "b", "c", "d"]}}
CALL: dict[str, Any] = {
    **{"metric": "score", "direction": "minimize", "seed": 3},
    **{"in_process": True, "device": "cpu", "gpu_memory_buffer_gb": 0, "memory_gb": 2, "report": False},
}
SAME = [search for search in SEARCHES if search != "gp"]
OPTIONS: dict[str, dict[str, Any]] = {
    "tpe": {"search_options": {"n_startup_trials": 4}},
    "nsgaii": {"search_options": {"population_size": 4}},
    "nsgaiii": {"search_options": {"population_size": 4}},
}
PRUNERS: list[tuple[str, dict[str, Any]]] = [
    ("asha", {"min_resource": 1, "reduction_factor": 2}),
    ("hyperband", {"max_resource": 4, "reduction_factor": 2}),
    ("median", {"n_startup_trials": 2}),
    ("percentile", {"percentile": 25.0, "n_startup_trials": 2}),
    ("patient", {"patience": 0}),
    ("threshold", {"upper": 1.1}),
    ("wilcoxon", {"p_threshold": 0.4}),
]


def train(config: dict[str, Any]) -> None:
    """Reports four times how far x is from 0.25."""
    for epoch, more in enumerate((1.0, 0.5, 0.75, 0.25), 1):
        tuner.report(score=(config["x"] - 0.25) ** 2 + more, other=config["x"], epoch=epoch)


def breaks_off(trial_id: str, epoch: int) -> Callable[[object], None]:
    """What presses Ctrl-C in the middle of a trial."""

    def heard(event: object) -> None:
        if isinstance(event, Reported) and (event.report.trial_id, event.report.epoch) == (trial_id, epoch):
            raise KeyboardInterrupt

    return heard


def of(result: Any) -> list[Any]:
    """What was tried in order, how it ended, and with what."""
    return [
        (row.trial_id, dict(row.config), row.status, row.epochs, dict(row.metrics))
        for row in sorted(result.trials, key=lambda row: row.trial_id)
    ]


def in_pieces(folder: Path, numbers: tuple[int, ...], **options: Any) -> Any:
    """A study that is resumed with more samples, and broken off in the fifth trial and its retry."""
    options = {**CALL, **options}
    result = tuner.run(train, num_samples=numbers[0], output=folder, **options)
    given = {name: options[name] for name in ("search", "scheduler") if not isinstance(options.get(name, ""), str)}
    given |= {name: options[name] for name in ("in_process", "report")}
    for epoch in (1, 3):
        with suppress(KeyboardInterrupt):  # a pruner may have ended it earlier
            call = [breaks_off("t005", epoch)]
            tuner.run(train, num_samples=numbers[1], resume=folder, callbacks=call, **given)
    for number in numbers[1:]:
        result = tuner.run(train, num_samples=number, resume=folder, **given)
    return result


@pytest.mark.parametrize("search", SAME[1:])
def test_a_search_in_pieces_suggests_what_it_does_at_once(search: str, tmp_path: Path) -> None:
    options = {"space": STEPS if search == "bruteforce" else SPACE, "search": search, **OPTIONS.get(search, {})}
    whole = tuner.run(train, num_samples=14, output=tmp_path / "whole", **CALL, **options)
    assert of(in_pieces(tmp_path / "pieces", (4, 8, 14), **options)) == of(whole)


def test_a_grid_in_pieces_is_the_grid(tmp_path: Path) -> None:
    whole = tuner.run(train, space=STEPS, search="grid", output=tmp_path / "whole", **CALL)
    given: dict[str, Any] = {"space": STEPS, "search": "grid", "output": tmp_path / "o", **CALL}
    for trial_id in ("t003", "t007"):
        with pytest.raises(KeyboardInterrupt):
            tuner.run(train, **given, callbacks=[breaks_off(trial_id, 2)])
        given = {"resume": tmp_path / "o", "in_process": True}
    assert of(tuner.run(train, resume=tmp_path / "o", in_process=True)) == of(whole)


@pytest.mark.parametrize(
    ("search", "scheduler", "options"),
    [*(("random", *pruner) for pruner in PRUNERS), ("tpe", *PRUNERS[0]), ("tpe", *PRUNERS[-1])],
)
def test_a_pruner_in_pieces_ends_whom_it_does_at_once(
    search: str, scheduler: str, options: dict[str, Any], tmp_path: Path
) -> None:
    chosen = {"search": search, "space": SPACE, "scheduler": scheduler, "scheduler_options": options}
    whole = tuner.run(train, num_samples=10, output=tmp_path / "whole", **CALL, **chosen)
    assert "pruned" in {row.status for row in whole.trials}
    assert of(in_pieces(tmp_path / "pieces", (4, 6, 10), **chosen)) == of(whole)


@pytest.mark.parametrize(
    "options",
    [
        {"search": "nsgaii", "metric": ("score", "other"), "direction": ("minimize", "maximize")},
        {"search": "tpe", "constraints": ("other <= 0.6",)},
        {"search": "random", "constraints": ("other <= 0.6",)},
        {"search": "cmaes", "points": [{"x": 0.5, "kind": "b"}, {"x": 0.1}]},
        {"search": "nsgaii", "points": [{"x": 0.75, "kind": "b"}, {"x": 0.5}], "space": STEPS},
    ],
    ids=["two objectives", "constraints", "random with constraints", "points", "points of steps"],
)
def test_objectives_constraints_and_points_in_pieces(options: dict[str, Any], tmp_path: Path) -> None:
    options = {"space": SPACE, **OPTIONS.get(options["search"], {}), **options}
    whole = tuner.run(train, num_samples=14, output=tmp_path / "whole", **{**CALL, **options})
    assert of(in_pieces(tmp_path / "pieces", (4, 8, 14), **options)) == of(whole)


def test_gp_in_pieces_suggests_other_points_each_time(tmp_path: Path) -> None:
    result = in_pieces(tmp_path / "pieces", (4, 8, 14), search="gp", space={"x": {"uniform": [0, 1]}})
    assert len({row.config["x"] for row in result.trials}) == 14


def test_a_sampler_that_suggests_other_values_now_is_told_what_was_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        given = optuna.samplers.BruteForceSampler(seed=1)
    space = {"n": {"int": [1, 12]}, "x": 0.5}
    tuner.run(train, space=space, search=given, num_samples=6, output=tmp_path / "o", **CALL)
    capsys.readouterr()
    result = tuner.run(train, search=given, num_samples=12, resume=tmp_path / "o", in_process=True)
    assert {row.config["n"] for row in result.trials} == set(range(1, 13))
    said = capsys.readouterr().out
    assert "BruteForceSampler suggests other values now than t001 had: it is told the earlier trials" in said


def test_what_happened_has_one_order_on_disk_over_all_processes(tmp_path: Path) -> None:
    in_pieces(tmp_path / "o", (4, 5, 6), search="tpe", space=SPACE)
    lines = [
        (line["order"], name, line)
        for name in ("attempts", "epochs", "suggestions")
        for line in map(json.loads, filter(None, (tmp_path / "o" / f"{name}.jsonl").read_text().splitlines()))
    ]
    lines.sort(key=lambda found: found[0])
    assert [order for order, *_ in lines] == list(range(1, len(lines) + 1))
    ended: set[str] = set()
    for _, name, line in lines:
        if name == "suggestions":
            assert ended == {f"t{number:03d}" for number in range(1, line["number"])}, "each was asked for alone"
        elif name == "attempts" and line["status"] == "completed":
            ended.add(line["trial_id"])


LINE = {"x": {"uniform": [0, 1]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three trials."""
    folder = tmp_path_factory.mktemp("study") / "o"
    tuner.run(train, space=LINE, search="tpe", num_samples=3, output=folder, **CALL)
    return folder


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"space": {"x": {"uniform": [0, 2]}}}, r"^space=\{'x': \{'uniform': \[0, 2\]\}\}: .* has space=.*\[0, 1\]"),
        ({"search": "random"}, r"^search='random': \S+ has search='tpe': leave it out, or start a new study$"),
        (
            {"search_options": {"n_startup_trials": 3}},
            "^search_options='n_startup_trials=3': .* has none: leave",
        ),
        ({"points": [{"x": 0.5}]}, r"^points=\[\{'x': 0.5\}\]: \S+ has none: leave it out"),
        ({"constraints": "score < 1"}, "^constraints='score < 1': .* has none: leave it out"),
        ({"overrides": ("y=1",)}, "^overrides='y=1': .* has none: leave it out"),
        ({"seed": 4}, "its seed is 3, not 4"),
        ({"direction": "maximize"}, "its direction is 'minimize', not 'maximize'"),
        ({"metric": "other"}, "its metric is 'score', not 'other'"),
        ({"num_samples": 2}, r"^num_samples=2: \S+ has 3 already: give no fewer$"),
    ],
)
def test_what_a_study_searches_cannot_be_changed(given: dict[str, Any], message: str, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(tuner.InputError, match=message):
        tuner.run(train, resume=folder, **{"num_samples": 4, "in_process": True, **given})
    assert before == {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_what_is_equal_may_be_given_again_and_what_may_change_is_kept(tmp_path: Path) -> None:
    config = tmp_path / "space.yaml"
    config.write_text(json.dumps({"space": LINE}))
    tuner.run(train, config=str(config), search="tpe", num_samples=2, output=tmp_path / "o", **CALL)
    equal = {"config": str(config), "search": "optuna", "seed": 3, "metric": "score", "direction": "min"}
    again: dict[str, Any] = {"resume": tmp_path / "o", "in_process": True}
    tuner.run(train, num_samples=3, max_attempts=7, keep="none", scheduler="asha", **equal, **again)
    options = json.loads((tmp_path / "o" / "study.json").read_text())["options"]
    assert (options["num_samples"], options["max_attempts"], options["scheduler"]) == (3, 7, "asha")
    config.write_text(json.dumps({"space": {"x": {"uniform": [0, 2]}}}))
    result = tuner.run(train, num_samples=30, **again)
    assert len(result.trials) == 30 and max(row.config["x"] for row in result.trials) <= 1, "the file may be gone"
    with pytest.raises(tuner.InputError, match=r"config=.*2.*: .* has config=.*1.*: leave it out"):
        tuner.run(train, num_samples=30, config=str(config), **again)


def test_random_samples_are_not_fewer_and_of_no_other_values(tmp_path: Path) -> None:
    tuner.run(train, space=LINE, search="random", num_samples=3, output=tmp_path / "o", **CALL)
    again: dict[str, Any] = {"resume": tmp_path / "o", "in_process": True}
    with pytest.raises(tuner.InputError, match=r"^num_samples=2: \S+ has 3 already: give no fewer$"):
        tuner.run(train, num_samples=2, **again)
    with pytest.raises(tuner.InputError, match=r"^overrides='y=1': .* has none: "):
        tuner.run(train, num_samples=4, overrides=("y=1",), **again)


def test_changed_code_is_noted_and_its_rows_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = train, {"resume": tmp_path / "o", "in_process": True, "report": False}

    def mended() -> Any:
        def train(config: dict[str, Any]) -> None:
            tuner.report(score=config["x"], other=0.0)

        return train

    tuner.run(first, space=LINE, search="tpe", num_samples=2, output=tmp_path / "o", **CALL)
    tuner.run(first, num_samples=3, **again)
    assert "code_version" not in (tmp_path / "o" / "results.csv").read_text()
    assert "code       changed" not in capsys.readouterr().out
    result = tuner.run(mended(), num_samples=5, **again)
    assert "code       changed since the last trials" in capsys.readouterr().out
    assert [row.code_version for row in sorted(result.trials, key=lambda row: row.trial_id)] == [1, 1, 1, 2, 2]
    frame = tuner.results(tmp_path / "o")
    assert sorted(frame["code_version"]) == sorted(result.to_frame()["code_version"]) == [1, 1, 1, 2, 2]
    assert len(tuner.results(tmp_path / "o", where="code_version=2")) == 2


def test_suggestions_that_cannot_be_used_are_recorded_and_asked_for_again(tmp_path: Path) -> None:
    space = {"batch_size": {"int": [2, 9]}, "accumulation": {"choice": [2]}, "lr": {"uniform": [0, 1]}, "epochs": 1}
    call = {**CALL, "metric": None, "direction": None, "space": space, "search": "tpe"}
    whole = tuner.run(Batched(), num_samples=14, output=tmp_path / "whole", **call)
    pieces = tuner.run(Batched(), num_samples=3, output=tmp_path / "o", **call)
    for number in (6, 14):
        pieces = tuner.run(Batched(), num_samples=number, resume=tmp_path / "o", in_process=True, report=False)
    assert [dict(row.config) for row in pieces.trials] == [dict(row.config) for row in whole.trials]
    lines = map(json.loads, filter(None, (tmp_path / "o" / "suggestions.jsonl").read_text().splitlines()))
    refused = [values["batch_size"] for line in lines for values in line["refused"]]
    assert refused and all(size % 2 for size in refused)
