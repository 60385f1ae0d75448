"""Nodes that do not share the study's folder: what trials need is sent to them, and their files come back."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.ray_trials import hold, placements
from tests.support.toy import Toy
from tests.support.worker_process import place
from tuner.decisions.plan import make_plan
from tuner.execution import own_folders, sent_files
from tuner.execution.own_folders import Elsewhere, NodeFolder, StudyFiles, shared_mark
from tuner.execution.ray_executor import RayExecutor
from tuner.execution.sent_files import Incoming, Piece, messages, pieces
from tuner.execution.stop_requests import StopRequests
from tuner.execution.worker import TrialOptions
from tuner.objective import Objective
from tuner.trial import GB, MB, EpochReport, Outcome, Placement
from tuner.workloads.base import Trainable
from tuner.workloads.program import Function
from tuner.workloads.script import script_of
from tuner.workloads.task import TrainingTask


@pytest.fixture
def options(tmp_path: Path) -> TrialOptions:
    """Those of a study whose folder this machine does not share: nothing marks it."""
    (tmp_path / "study" / "checkpoints").mkdir(parents=True)
    return TrialOptions(checkpoints=tmp_path / "study" / "checkpoints", checkpoint_seconds=0.0)


@pytest.fixture
def placement() -> Placement:
    """That of a trial, t001."""
    return place(Toy(), {})


def run(node: NodeFolder, placement: Placement, *events: Any) -> list[Any]:
    """What comes to the study from a trial with these events."""
    return [one for message in node.run(placement, [], iter([[event] for event in events])) for one in message]


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)


def test_files_come_in_pieces_and_replace_earlier_ones_once_they_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_files, "PIECE_BYTES", 4)
    there, here = tmp_path / "there", tmp_path / "here"
    write(there / "t1" / "deep", long="0123456789", empty="")
    (there / "t1" / "link").symlink_to("/etc/passwd")
    write(here / "t1", earlier="")
    sent = list(messages(pieces(there, "t1")))
    assert max(sum(len(piece.content) for piece in message) for message in sent) <= 4
    incoming = Incoming(here, here)
    for piece in [piece for message in sent for piece in message]:
        assert (here / "t1" / "earlier.txt").exists()
        incoming.take(piece, ["t1"])
    assert sorted(str(path.relative_to(here)) for path in here.rglob("*.*")) == [
        "t1/deep/empty.txt",
        "t1/deep/long.txt",
    ]
    assert (here / "t1" / "deep" / "long.txt").read_text() == "0123456789"


def test_what_has_come_of_a_file_before_it_began_anew_does_not_count(tmp_path: Path) -> None:
    write(tmp_path / "there", a="whole")
    whole, incoming = list(pieces(tmp_path / "there", "a.txt")), Incoming(tmp_path, tmp_path)
    for piece in (*whole[:2], *whole):
        incoming.take(piece, ["a.txt"])
    assert (tmp_path / "a.txt").read_text() == "whole"


@pytest.mark.parametrize(
    ("tree", "path"), [("study.json", ""), ("t1", "../study.json"), ("t1", "/tmp/a"), ("t1/..", "a"), ("t1", "a\0b")]
)
def test_a_node_can_write_no_other_file(tmp_path: Path, tree: str, path: str) -> None:
    incoming = Incoming(tmp_path, tmp_path)
    with pytest.raises(PermissionError, match="is none of its files"):
        incoming.take(Piece(tree, path, b"evil"), ["t1"])
    assert not list(tmp_path.iterdir())


def test_a_trials_files_come_back_before_its_outcome(options: TrialOptions, placement: Placement) -> None:
    node, study, trial = NodeFolder(options), StudyFiles(options, "head"), placement.trial.trial_id
    folder = node.options.checkpoints
    assert folder is not None and options.checkpoints is not None and folder != options.checkpoints
    write(folder.parent / "trials" / trial, note="kept")
    checkpoint = folder / f"{trial}.pt"

    def events() -> Iterator[list[Any]]:
        write(folder.parent / "trials" / trial, note="kept")
        write(folder.parent / "logs")
        (folder.parent / "logs" / f"{trial}.log").write_text("printed")
        checkpoint.write_bytes(b"first")
        yield [EpochReport(trial, 1, 2)]
        checkpoint.write_bytes(b"second")
        yield [Outcome(placement.trial, "pruned", placement)]

    seen = []
    for message in node.run(placement, [], events()):
        for event in message:
            if isinstance(event, (Piece, Elsewhere)):
                study.hear(event, placement, "node")
            elif isinstance(event, (EpochReport, Outcome)):
                seen.append((options.checkpoints / checkpoint.name).read_bytes())
    assert seen == [b"first", b"second"]
    home = options.checkpoints.parent
    assert (home / "trials" / trial / "note.txt").read_text() == "kept"
    assert (home / "logs" / f"{trial}.log").read_text() == "printed"


def test_what_a_worker_prints_between_trials_comes_back_with_the_next_trial(
    options: TrialOptions, placement: Placement
) -> None:
    node, study = NodeFolder(options), StudyFiles(options, "head")
    assert options.checkpoints is not None and node.options.checkpoints is not None
    write(node.options.checkpoints.parent / "logs")
    (node.options.checkpoints.parent / "logs" / "worker.log").write_text("it crashed")
    for event in run(node, placement, Outcome(placement.trial, "completed", placement)):
        if isinstance(event, (Piece, Elsewhere)):
            study.hear(event, placement, "node")
    assert (options.checkpoints.parent / "logs" / f"{placement.log}.worker.log").read_text() == "it crashed"
    assert not [
        one for one in run(node, placement, Outcome(placement.trial, "failed", placement)) if type(one) is Piece
    ]


def test_a_shared_folder_is_noticed_and_used(options: TrialOptions, placement: Placement) -> None:
    assert options.checkpoints is not None
    StudyFiles(options, "head")
    assert shared_mark(options.checkpoints, options.launch.study).exists()
    node, outcome = NodeFolder(options), Outcome(placement.trial, "completed", placement)
    assert node.options == options
    assert run(node, placement, outcome) == [outcome]


def test_a_trials_folder_that_is_too_large_stays_and_its_row_says_so(
    options: TrialOptions, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_folders, "TRIAL_BYTES", 3)
    node = NodeFolder(options)
    assert node.options.checkpoints is not None

    def events() -> Iterator[list[Any]]:
        write(node.options.checkpoints.parent / "trials" / placement.trial.trial_id, a="1234")  # type: ignore[union-attr]
        yield [Outcome(placement.trial, "completed", placement)]

    *_, last = (event for message in node.run(placement, [], events()) for event in message)
    assert "did not come back: 0.0 GB, more than" in last.error
    assert "share" in last.error


def test_a_trial_on_a_node_with_its_own_folder_is_asked_to_end_there(
    options: TrialOptions, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here:
        def __init__(self, function: Any) -> None:
            self.remote = function

    monkeypatch.setattr(own_folders, "on_node", lambda function, _: Here(function))
    node, study = NodeFolder(options), StudyFiles(options, "head")
    requests, trial = StopRequests(node.options.checkpoints), placement.trial.trial_id
    (elsewhere,) = run(node, placement)
    study.hear(elsewhere, placement, "node")
    study.prune("another")
    assert not requests.prune_requested(trial)
    study.prune(trial)
    assert requests.prune_requested(trial)
    assert not requests.stop_requested()
    study.stop_all()
    assert requests.stop_requested()


def test_of_a_folder_with_code_nothing_large_hidden_or_installed_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "src", train="", config="lr: 1")
    for other in (".git", "__pycache__", "env", "study"):
        write(tmp_path / other, some="text")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "study" / "study.json").touch()
    (tmp_path / "data.csv").write_bytes(bytes(MB + 1))
    code = sent_files._listed(tmp_path)
    assert sorted(code.files) == ["src/config.txt", "src/train.txt"]
    assert code.lacking == f"data.csv of {tmp_path}, larger than 1 MB: a trial that reads it needs it there"
    assert code.is_here
    (tmp_path / "src" / "train.txt").write_text("changed")
    assert not code.is_here
    monkeypatch.setattr(sent_files, "CODE_FILES", 3)
    monkeypatch.setitem(sys.modules, "used", SimpleNamespace(__file__=str(tmp_path / "src" / "train.txt")))  # type: ignore[misc]
    code = sent_files._listed(tmp_path)
    assert "but loaded modules, as it has more than 3 files" in code.lacking
    assert list(code.files) == ["src/train.txt"]


@pytest.fixture(scope="module")
def other_node() -> Iterator[Any]:
    """The address of a head without a CPU to use, and one more node."""
    from ray.cluster_utils import Cluster

    node = {"memory": GB, "object_store_memory": 80 * MB}
    made = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=1, **node)
    made.wait_for_nodes()
    yield made.address
    made.shutdown()


MINE = """
import tuner

def train(config):
    from beside import rate
    import lazy.inside
    tuner.report(loss=rate)
"""
SCRIPT = """
import json, os, sys
from pathlib import Path
import tuner
state = tuner.checkpoint()
from beside import rate
import lazy.inside
folder = tuner.trial_dir()
(folder / "note.txt").write_text(str(state and state["epoch"]))
print("printed by", __file__)
tuner.report(loss=rate, checkpoint={"epoch": 1})
assert open("config.txt").read() == "here"
if state is None:
    raise SystemExit(3)
"""


@contextmanager
def elsewhere(
    address: str, trainable: Trainable, home: Path, checkpoints: Path
) -> Iterator[tuple[RayExecutor, Placement]]:
    """A trial, still to be submitted, for a node that has neither the code, in ``home``, nor the study's folder."""
    with closing(RayExecutor(address=address)) as executor:
        plan = make_plan(executor.devices("cpu"), [GB // 2], packing="uniform", buffer_bytes=0, threads=1)
        task = TrainingTask(trainable, None, objective=Objective("loss"))
        executor.open({"toy": task}, plan, checkpoints)
        shared_mark(checkpoints, executor._options.launch.study).unlink()
        home.rename(home.with_name("away"))
        hold(executor, plan.devices[0])
        yield executor, placements(plan, 1)[0]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with code that another node lacks."""
    (tmp_path / "home" / "lazy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr("tuner.execution.ray_executor.on_one_machine", lambda *_: False)
    write(tmp_path / "home", config="here")
    code = {
        "train.py": SCRIPT,
        "beside.py": "rate = 0.5",
        "lazy/inside.py": "",
        "lazy/__init__.py": "",
        "mine.py": MINE,
    }
    for name, text in code.items():
        (tmp_path / "home" / name).write_text(text)
    return tmp_path / "home"


@pytest.mark.long
@pytest.mark.ray
def test_a_script_trains_on_a_node_that_has_neither_its_folder_nor_the_studys(
    other_node: str, home: Path, options: TrialOptions
) -> None:
    checkpoints = options.checkpoints
    assert checkpoints is not None
    with elsewhere(other_node, script_of(["train.py", "--lr", "{lr}"]), home, checkpoints) as (executor, placed):
        executor.submit(placed)
        first, _ = outcome_of(executor)
        trial = placed.trial.trial_id
        assert (first.status, first.epochs) == ("failed", 1), first
        assert (checkpoints / trial).is_dir()
        executor.submit(replace(placed, trial=replace(placed.trial, attempt=2)))
        second, weights = outcome_of(executor)
        assert (second.status, second.error, second.metrics["loss"]) == ("completed", "", 0.5)
        assert torch.load(io.BytesIO(weights), weights_only=True)["weights"] == {"epoch": 1}
    assert (checkpoints.parent / "trials" / trial / "note.txt").read_text() == "1"
    assert (checkpoints.parent / "logs" / f"{trial}.log").read_text().count("printed by") == 2
    assert [path.name for path in checkpoints.iterdir()] == [trial]


@pytest.mark.long
@pytest.mark.ray
def test_a_package_that_only_the_head_has_is_found_when_a_trial_imports_it(
    other_node: str, home: Path, options: TrialOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(home)
    function = Function(importlib.import_module("mine").train)
    assert options.checkpoints is not None
    with elsewhere(other_node, function, home, options.checkpoints) as (executor, placed):
        executor.submit(placed)
        outcome, _ = outcome_of(executor)
        assert (outcome.status, outcome.error, outcome.metrics["loss"]) == ("completed", "", 0.5)


def outcome_of(executor: RayExecutor) -> tuple[Outcome, bytes]:
    """A trial's outcome, and its weights."""
    while True:
        for event, weights in executor.poll(1):
            if isinstance(event, Outcome):
                return event, weights() if event.status == "completed" else b""
