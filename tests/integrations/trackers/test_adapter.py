"""What trackers are told, and trackers that fail, hang or are not installed; without any of the real ones."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.study.test_study import Interrupted, study
from tuner.errors import InputError
from tuner.integrations.trackers.adapter import CLOSE_SECONDS, Figures, Tracker, Trackers
from tuner.integrations.trackers.selection import choose_trackers
from tuner.records.attempts import Attempt
from tuner.trial import GB, Device, EpochReport, MemoryEstimate, Placement, Trial


class Stand(Tracker):
    """A tracker that keeps what it is told, and fails or hangs at its first epoch if it is told to."""

    def __init__(self, fault: str = "") -> None:
        super().__init__("stand")
        self.fault = fault
        self.told: list[tuple[Any, ...]] = []
        self.release = threading.Event()

    def connect(self) -> None:
        self.told.append(("connect",))

    def open(self, name: str, study_id: str, folder: Path) -> None:
        self.told.append(("open", name))

    def begin(self, trial: Trial) -> None:
        self.told.append(("begin", trial.trial_id))

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        if self.fault == "raises":
            raise ConnectionError("the server\nis gone")
        if self.fault == "hangs":
            self.release.wait(10)
        self.told.append(("log", trial_id, epoch))

    def end(self, row: Attempt) -> None:
        self.told.append(("end", row.trial_id, row.status))


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    """Takes TensorBoard's place in every study of the test."""
    told = Stand()

    def choose(*_: object) -> Trackers:
        tracker = Stand(told.fault)
        tracker.told, tracker.release = told.told, told.release
        return Trackers([tracker], close_seconds=0.1 if told.fault == "hangs" else CLOSE_SECONDS)

    monkeypatch.setattr("tuner.study.study.choose_trackers", choose)
    yield told


LOGS = [("log", "t001", epoch) for epoch in (1, 2, 3)]


def told_of(stand: Stand, trial_id: str) -> list[tuple[Any, ...]]:
    return [told for told in stand.told if told[1:2] == (trial_id,)]


def test_a_tracker_is_told_in_order_and_of_trials_that_fail_before_their_first_word(
    tmp_path: Path, stand: Stand
) -> None:
    study(tmp_path / "out", {"name": "a"}, {"name": "b", "fault": 1})
    assert stand.told[:2] == [("connect",), ("open", "out")]
    assert told_of(stand, "t001") == [("begin", "t001"), *LOGS, ("end", "t001", "completed")]
    assert told_of(stand, "t002") == [("begin", "t002"), ("end", "t002", "failed")]


def test_a_resumed_study_sends_each_epoch_once(tmp_path: Path, stand: Stand) -> None:
    listed = [{"name": name} for name in "abcd"]
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", *listed, executor=Interrupted, max_workers=2)
    interrupted = [("begin", "t002"), ("log", "t002", 1), ("end", "t002", "interrupted")]
    assert told_of(stand, "t002") == interrupted
    assert told_of(stand, "t004") == [], "it had no place"
    stand.told.clear()
    study(tmp_path / "out", *listed, output=None, resume=str(tmp_path / "out"))
    logs = [("log", "t002", epoch) for epoch in (2, 3)]
    assert told_of(stand, "t002") == [("begin", "t002"), *logs, ("end", "t002", "completed")]
    assert [told[1] for told in stand.told if told[0] == "end"] == ["t002", "t003", "t004"]


def test_a_trial_that_is_tried_again_keeps_the_first_figures_of_an_epoch() -> None:
    trackers = Trackers([stand := Stand()])
    stand.start()
    for attempt, epochs in ((1, (1, 2)), (2, (1, 2, 3))):
        trackers.started(a_placement(attempt))
        for epoch in epochs:
            trackers.reported(EpochReport("t001", epoch, 3, {"val_loss": 1.0}))
    assert trackers.close() == []
    assert stand.told == [("begin", "t001"), *LOGS]


def test_a_tracker_that_fails_costs_one_line(
    tmp_path: Path, stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    stand.fault = "raises"
    result = study(tmp_path / "out", {"name": "a"}, {"name": "b"})
    assert result.exit_code == 0
    lines = [line[len("12:31:05 ") :] for line in capsys.readouterr().out.splitlines() if "stand" in line]
    assert lines == ["stand: the server is gone; it gets no more data; the study continues"]


def test_a_tracker_that_hangs_is_not_waited_for_for_ever(
    tmp_path: Path, stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    stand.fault = "hangs"
    began = time.monotonic()
    assert study(tmp_path / "out", {"name": "a"}).exit_code == 0
    stand.release.set()
    assert time.monotonic() - began < 5
    assert "stand: did not accept everything within 0.1 s\n" in capsys.readouterr().out


def test_a_dry_run_connects_to_nothing(tmp_path: Path, stand: Stand) -> None:
    study(tmp_path / "out", {"name": "a"}, dry_run=True)
    assert stand.told == []


@pytest.mark.parametrize("package", ["mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_says_which_extra_is(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not there
    options = {"mlflow": None, "wandb": None, package: "sqlite:///x.db" if package == "mlflow" else "p"}
    with pytest.raises(InputError, match=rf"^{package}: .* is not installed: .*\[{package}\]'$"):
        choose_trackers(False, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mlflow": ""}, "mlflow='': give a server"),
        ({"mlflow": 3}, "mlflow=3: give a server"),
        ({"mlflow": "postgresql://me:secret@db/x"}, "mlflow: the URI holds a password"),
        ({"mlflow": "postgresql://me@db/x?Password=secret"}, "mlflow: the URI holds a password"),
        ({"wandb": ""}, "wandb='': give a project's name"),
        ({"wandb": "a/b/c"}, "wandb='a/b/c': give a project's name"),
    ],
)
def test_what_can_be_no_tracker_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(said)) as refused:
        choose_trackers(False, **{"mlflow": None, "wandb": None, **options})
    assert "secret" not in str(refused.value)


def a_placement(attempt: int) -> Placement:
    device = Device("", "cpu", 0, "RAM", GB, GB, 1)
    return Placement(Trial("t001", "toy", "a", {}, 0, attempt), MemoryEstimate("given"), device, 1.0, GB, threads=1)


class StandRun(SimpleNamespace):
    """What ``wandb.init`` gives."""

    def log(self, figures: Figures, step: int) -> None:
        self.logged[step] = figures
        self.step = step

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def stand_in_for_wandb(made: list[Any], logged_in: bool) -> SimpleNamespace:
    class Config(dict[str, Any]):
        def update(self, other: Any, allow_val_change: bool = False) -> None:  # type: ignore[override]
            assert allow_val_change
            super().update(other)

    def init(**given: Any) -> StandRun:
        made.append(StandRun(step=0, logged={}, summary={}, given=given, config=Config(given["config"])))
        return made[-1]

    settings = SimpleNamespace(settings=SimpleNamespace(mode="online"))
    spec = ModuleSpec("wandb", None)
    return SimpleNamespace(
        __spec__=spec, init=init, login=lambda prompt: logged_in, setup=lambda: settings, Settings=dict
    )


def test_wandb_is_told_the_figures_of_the_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", stand_in_for_wandb(made, logged_in=True))
    result = study(tmp_path / "out", {"name": "a"}, {"name": "b", "fault": 1}, wandb="team/project")
    good, bad = made
    assert (good.given["entity"], good.given["project"], good.given["group"]) == ("team", "project", "out")
    assert good.given["id"].endswith("-t001") and good.given["id"] != bad.given["id"]
    assert (good.exit_code, bad.exit_code) == (0, 1)
    row = next(row for row in result.rows if row["name"] == "a")
    numbers = {key: row[key] for key in ("val_loss", "test_loss", "peak_memory_gb", "epochs", "duration_s")}
    assert {key: good.summary[key] for key in numbers} == numbers
    assert (good.summary["status"], good.config["lr"], good.config["seed"]) == ("completed", 0.1, 0)
    assert list(good.logged) == [1, 2, 3]
    assert bad.summary["error"].startswith("first step: loss failed: ValueError: no such thing (toy.py, line ")


def test_wandb_without_a_key_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", stand_in_for_wandb([], logged_in=False))
    with pytest.raises(InputError, match=r"^wandb='project': W&B has no API key here: run wandb login"):
        study(tmp_path / "out", {"name": "a"}, wandb="project")
    assert not (tmp_path / "out").exists()


def test_wandb_itself_keeps_runs_that_can_be_sent_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: a stand-in is tested")
    monkeypatch.setenv("WANDB_MODE", "offline")
    study(tmp_path / "out", {"name": "a"}, wandb="project")
    assert len(list((tmp_path / "out" / "wandb").glob("offline-run-*/run-*-t001.wandb"))) == 1
