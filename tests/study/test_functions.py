"""Studies of the user's own functions, from the call to the results."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuner
from tests.support.commands import refused, said
from tuner.errors import InputError
from tuner.records.epochs import read_epochs

SPACE = {"x": {"uniform": [-1, 1]}, "kind": {"choice": [None, [1, 2]]}}
CALL: dict[str, Any] = {
    **{"metric": "score", "direction": "maximize", "device": "cpu", "gpu_memory_buffer_gb": 0, "report": False},
    **{"in_process": True, "seed": 1},
}


def train(config: dict[str, Any]) -> None:
    """Reports more for a smaller x."""
    assert config["kind"] is None or config["kind"] == [1, 2]
    for epoch in range(4):
        tuner.report(score=-(config["x"] ** 2) + epoch / 100, epoch=epoch)


def run(function: Callable[..., Any], folder: Path, **options: Any) -> Any:
    """A study in this process."""
    return tuner.run(**{"workload": function, **CALL, "output": folder, **options})


def test_a_function_is_tuned_and_the_best_is_given_with_its_objects(tmp_path: Path) -> None:
    result = run(train, tmp_path / "out", space=SPACE, num_samples=6)
    assert [row.status for row in result.trials] == ["completed"] * 6
    assert result.best_value == max(row.metrics["score"] for row in result.trials)
    assert set(result.best_config) == {"x", "kind"} and result.best_config["kind"] in (None, [1, 2])
    assert result.trials[0].metrics["best_epoch"] == 4
    assert {repr(row.config["kind"]) for row in result.trials} <= {"None", "[1, 2]"}


class Trainer:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def train(self, config: dict[str, Any]) -> None:
        tuner.report(score=1)


def test_what_no_other_process_can_have_is_named_before_any_starts(tmp_path: Path) -> None:
    trainer, lock = Trainer(), threading.Lock()
    why = r"cannot be sent to another process: .*lock.*: make it where a trial uses it, or give in_process=True"
    for function, data, names in (
        (trainer.train, None, r"train\.self\.lock"),
        (lambda config: lock.locked() or {"score": 1}, None, r"lambda\.lock"),
        (lambda config, data: {"score": 1}, {"held": [lock]}, r"data\.held"),
    ):
        with pytest.raises(InputError, match=f"^{names} {why}$"):
            run(function, tmp_path / "out", config=[{"x": 1}], in_process=False, data=data, memory_gb=1)
    assert not (tmp_path / "out").exists()
    assert run(trainer.train, tmp_path / "out", config=[{"x": 1}]).best_value == 1


def terminates_children(config: dict[str, Any]) -> None:
    fork = multiprocessing.get_context("fork")
    with fork.Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]
    process = fork.Process(target=time.sleep, args=[60])
    process.start()
    process.terminate()
    process.join(20)
    tuner.report(score=process.exitcode or 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_children_of_a_trial_in_this_process_are_ended_as_without_a_study(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Ray of an earlier test has its own handler
    try:
        assert run(terminates_children, tmp_path / "out", config=[{"x": 1}]).best_value == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def asks_to_end(config: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    tuner.report(score=1)


def test_trials_that_wait_as_the_study_ends_are_on_disk_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    monkeypatch.setattr(os, "fsync", syncs.append)
    with pytest.raises(KeyboardInterrupt):
        run(asks_to_end, tmp_path / "out", config=[{"x": number} for number in range(200)])
    assert tuner.results(tmp_path / "out")["status"].value_counts()["interrupted"] >= 199
    assert len((tmp_path / "out" / "attempts.jsonl").read_text().splitlines()) == 200 and len(syncs) < 40


def test_asha_stops_functions_whose_epochs_are_not_known_before(tmp_path: Path) -> None:
    result = run(train, tmp_path / "out", space=SPACE, num_samples=12, scheduler="asha")
    pruned = [row for row in result.trials if row.status == "pruned"]
    assert min(row.epochs for row in pruned) < 4
    assert all(row.error.startswith(f"asha ended it after {row.epochs} epoch") for row in pruned)


def test_all_trials_share_the_data_and_seeds_are_repeated(tmp_path: Path) -> None:
    data = {"values": np.arange(10.0)}

    def of_data(config: dict[str, Any], data: dict[str, Any]) -> dict[str, float]:
        return {"score": float(data["values"].sum() + np.random.default_rng(0).random() * 0 + np.random.rand())}

    result = run(of_data, tmp_path / "out", data=data, seeds=2, config=[{"a": 1}, {"a": 2}])
    scores = {(row.name, row.seed): row.metrics["score"] for row in result.trials}
    assert len(scores) == 4 and scores["a=1", 1] == scores["a=2", 1] != scores["a=1", 2]
    with pytest.raises(InputError, match="its data are different"):
        tuner.run(of_data, resume=tmp_path / "out", data={"values": np.ones(3)})
    with pytest.raises(InputError, match="its data must be given again, as only Python can give it: make the same"):
        tuner.run(of_data, resume=tmp_path / "out")


def test_an_interrupted_study_goes_on_from_the_functions_checkpoints(tmp_path: Path) -> None:
    starts: list[Any] = []

    def counting(config: dict[str, Any]) -> None:
        state: Any = tuner.checkpoint() or {"epoch": 0}
        starts.append(state["epoch"])
        for epoch in range(state["epoch"], 3):
            tuner.report(score=epoch, checkpoint={"epoch": epoch + 1})
            if epoch == 1 and len(starts) == 1:
                os.kill(os.getpid(), 2)

    with pytest.raises(KeyboardInterrupt):
        run(counting, tmp_path / "out", config=[{"a": 1}])
    result = tuner.run(counting, resume=tmp_path / "out")
    assert (starts, result.trials[0].epochs, result.best_value) == ([0, 3], 3, 2.0)
    assert tuner.load_best(tmp_path / "out") == {"epoch": 3}


def test_what_a_kill_has_lost_is_told_by_the_checkpoint_and_time_is_that_of_all_sessions(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        done: Any = (tuner.checkpoint() or {"epoch": 0})["epoch"]  # type: ignore[call-overload]
        for epoch in range(done, 4):
            tuner.report(score=epoch, checkpoint={"epoch": epoch + 1})
            if epoch == 1 and not done:
                os.kill(os.getpid(), 2)

    with pytest.raises(KeyboardInterrupt):
        run(train, tmp_path, config=[{"a": 1}])
    (tmp_path / "attempts.jsonl").write_text("")
    lines = (tmp_path / "epochs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "epochs.jsonl").write_text("".join(line for line in lines if json.loads(line)["epoch"] < 2))
    (about,) = tmp_path.glob("checkpoints/t001/*/progress.json")
    about.write_text(json.dumps({**json.loads(about.read_text()), "seconds": 1000.0}))
    (row,) = tuner.run(train, resume=tmp_path).trials
    told = [(line.epoch, line.metrics) for line in read_epochs(tmp_path / "epochs.jsonl") if line.metrics]
    assert told == [(epoch, {"score": epoch - 1}) for epoch in (1, 2, 3, 4)]
    assert row.duration_s > 1000 > row.own_seconds


def test_a_functions_study_is_read_by_the_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(train, tmp_path / "out", space=SPACE, num_samples=2)
    assert "train({" in said(capsys, "results", str(tmp_path / "out"))
    assert "score" in tuner.write_report(result).read_text()
    assert "train trains by itself" in refused(capsys, "train", "--from", str(tmp_path / "out"))


@pytest.mark.ray
def test_a_function_of_a_script_runs_side_by_side_and_is_retried_with_more_memory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import tuner\n"
        "def train(config):\n"
        "    if config['mb'] != 1: print('trial of', config['mb'])\n"
        "    tuner.report(loss=3)\n"
        "    block = bytearray(config['mb'] << 20)\n"
        "    tuner.report(loss=config['mb'])\n"
        "if __name__ == '__main__':\n"
        "    result = tuner.run(train, config=[{'mb': 1}, {'mb': 2}, {'mb': 420}], metric='loss', direction='min',\n"
        "        device='cpu', gpu_memory_buffer_gb=0, memory_gb=0.4, backoff=0, output='out', report=False)\n"
        "    print(result.best_config, result.best_value)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(tuner.__file__).parents[1]), *sys.path])}
    command = [sys.executable, "mine.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("{'mb': 1} 1.0\n")
    table = tuner.results(tmp_path / "out")
    assert dict(zip(table["config/mb"], table["attempts"], strict=True)) == {1: 1, 2: 1, 420: 2}
    logs = {log.name: log.read_text() for log in (tmp_path / "out" / "logs").iterdir()}
    assert logs == {"t002.log": "trial of 2\n", "t003.log": "trial of 420\n" * 2}, "of both attempts; none is empty"


def test_functions_and_spaces_are_named_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_functions.py").write_text("import tuner\ndef train(config):\n    tuner.report(loss=config['x'])\n")
    Path("space.yaml").write_text("x: {choice: [3, 1, 2]}\n")
    options = ("--metric", "loss", "--direction", "min", "--in-process", "--output", "out", "--device", "cpu")
    printed = said(capsys, "my_functions:train", "--space", "space.yaml", "--gpu-memory-buffer-gb", "0", *options)
    assert "best: loss 1.0000 with x=1. Again: train({'x': 1})  # tuner seeded it with 0" in printed
    assert "direction maximize" in refused(capsys, "my_functions:train", "--metric", "loss").replace("--", "")
    assert "give --metric, the reported metric" in refused(capsys, "my_functions:train")
    assert "upwards" in refused(capsys, "my_functions:train", "--metric", "loss", "--direction", "upwards")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda config: None, "lambda ended without a report: call tuner.report"),
        (lambda config: 0.5, 'lambda returned a number without a name: return {"score": …}, or call tuner.report'),
        (lambda c: c.suggest_float("x", 0, 1), "lambda takes a trial, as Optuna's objectives do: call tuner.optuna"),
        (lambda config: tuner.report(accuracy=1), "was given accuracy, but not 'score', which metric names"),
        (lambda config: tuner.report(score="high"), "score is 'high': expected a number"),
        (lambda config: tuner.report(score=float("nan")), "score was never a finite number"),
    ],
)
def test_what_is_wrong_with_a_function_is_told_in_its_row(
    function: Callable[..., Any], text: str, tmp_path: Path
) -> None:
    (row,) = run(function, tmp_path / "out").trials
    assert row.status in ("failed", "diverged") and text in row.error and "\n" not in row.error


@pytest.mark.usefixtures("writes_pages")
def test_a_function_in_this_process_may_change_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moves(config: dict[str, Any]) -> None:
        assert Path.cwd() == tmp_path
        os.mkdir(f"run{config['x']}")
        os.chdir(f"run{config['x']}")
        for score in range(2):
            tuner.report(score=score, checkpoint={"cwd": os.getcwd()})

    monkeypatch.chdir(tmp_path)
    result = run(moves, Path("out"), space={"x": {"choice": [1, 2]}}, report=True)
    assert [row.status for row in result.trials] == ["completed"] * 2 and Path.cwd() == tmp_path
    assert tuner.load_best("out") == {"cwd": str(tmp_path / "run1")}
    assert Path("out/report.html").exists() and not list(tmp_path.glob("run*/*"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"space": {"x": {"normal": [0, 1]}}}, "x: .*normal"),
        ({"direction": "upwards"}, "direction='upwards'"),
        ({"mode": "max"}, "give direction='maximize'"),
        ({"metric": None}, "give metric, the reported metric"),
        ({"workload": lambda trial: 1.0}, r"lambda takes a trial, .*: call tuner.optuna.optimize\(study, lambda, n"),
        ({"direction": None}, "is more of 'score' better, or less"),
        ({"in_process": True, "max_workers": 2}, "in_process.* and .*max_workers"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=text):
        run(train, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_script_is_tuned_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    saves = "open('model.pt', 'w').close()\n"
    Path("train.py").write_text("import json, sys\nprint(json.dumps({'loss': float(sys.argv[2])}))\n" + saves)
    Path("space.yaml").write_text("lr: {choice: [0.5, 0.25]}\n")
    options = ("--space", "space.yaml", "--metric", "loss", "--direction", "min", "--gpu-memory-buffer-gb", "0")
    alone = ("--max-workers", "1", "--output", "out", "--device", "cpu")
    printed = said(capsys, "script", "train.py", *options, *alone, "--", "--lr", "{lr}")
    assert "best: loss 0.2500 with lr=0.25. Again: python train.py --lr 0.25" in printed
    shared = "shared file: lr=0.5 and lr=0.25 both wrote model.pt: to give each trial its own folder"
    assert f"warning: lr=0.25: {shared}" in printed
    assert [str(error).startswith(shared) for error in tuner.results("out")["error"]] == [True, False]
    assert (tmp_path / "out" / "logs" / "t001.log").read_text() == '$ train.py --lr 0.5\n{"loss": 0.5}\n'
    assert "its arguments lack lr: add for example --lr {lr}" in refused(capsys, "script", "train.py", *options)
    assert "--in-process: a script needs" in refused(
        capsys, "script", "train.py", "--in-process", *options, "--", "{lr}"
    )
    assert "there is no" in refused(capsys, "script", "other.py", *options).replace("No such file", "there is no")


def test_a_function_that_does_not_end_is_completed_after_its_epochs(tmp_path: Path) -> None:
    def forever(config: dict[str, Any]) -> None:
        for number in itertools.count(1):
            tuner.report(score=number * config["a"])

    space = {"a": {"choice": [1, 2]}}
    result = run(forever, tmp_path / "out", epochs=3, space=space)
    assert [(row.status, row.epochs, row.metrics["score"]) for row in result.trials] == [
        ("completed", 3, 6.0),
        ("completed", 3, 3.0),
    ]
    timed = run(forever, tmp_path / "timed", trial_time_limit=0.2, score="mean:2", space=space)
    assert {(row.status, row.metrics["score"] / row.config["a"] % 1) for row in timed.trials} == {("completed", 0.5)}
    with pytest.raises(InputError, match=r"score='last': .*timed has score='mean:2': leave it out"):
        run(forever, tmp_path / "none", resume=tmp_path / "timed", output=None, score="last")
    with pytest.raises(InputError, match=r"metric='error': results have a column of this name"):
        run(forever, tmp_path / "none", space=space, metric="error")
    with pytest.raises(InputError, match=r"score='mean:0': must be best, last, or mean:N"):
        run(forever, tmp_path / "none", space=space, score="mean:0")
    with pytest.raises(InputError, match=r"trial_time_limit='1s': workload graphsage has its own epochs"):
        run("graphsage", tmp_path / "none", metric=None, direction=None, trial_time_limit="1s")


def test_a_returned_mean_that_counts_less_than_a_fold_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def folds(config: dict[str, Any]) -> dict[str, float]:
        for fold in (0.9, 0.8, 0.7):
            tuner.report(score=fold + config["a"])
        return {"score": 0.8 + config["a"]}

    space = {"a": {"choice": [0.01, 0.02]}}
    result = run(folds, tmp_path / "out", space=space)
    assert result.best_value == pytest.approx(0.92)
    told = "returned mean: it returned the mean 0.82 of its reports, and the best of them, 0.92, counts: "
    told += "give score='last'"
    assert result.trials[0].error == told
    assert f"warning: a=0.02: {told} (and 1 more trials)" in capsys.readouterr().out
    for score in ("last", "mean:3"):
        scored = run(folds, tmp_path / score, space=space, score=score)
        assert scored.best_value == pytest.approx(0.82 if score == "last" else 0.78, abs=0.01)
        assert not any(row.error for row in scored.trials)


def test_small_metrics_are_ranked_and_data_for_nobody_is_refused(tmp_path: Path) -> None:
    def tiny(config: dict[str, Any]) -> None:
        tuner.report(score=1.2345e-8 * config["a"])

    result = run(tiny, tmp_path / "out", space={"a": {"choice": [1, 3, 2]}})
    assert (result.best_config, result.best_value) == ({"a": 3}, pytest.approx(3.7035e-8))
    with pytest.raises(InputError, match="tiny takes no data"):
        run(tiny, tmp_path / "other", data=np.ones(3))
