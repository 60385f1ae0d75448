"""Lightning's Trainer in a trial."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any
from unittest.mock import Mock

import pytest
from torch import nn

import tuner
from tuner.decisions.plan import make_plan
from tuner.errors import WorkloadError
from tuner.execution.child_executor import ChildExecutor
from tuner.machine.devices import ram_device
from tuner.objective import Objective
from tuner.training.endings import Fit, Pruned, Stopped
from tuner.training.program import run_program
from tuner.training.program_checkpoints import ProgramCheckpoints
from tuner.trial import GB, EpochReport, MemoryEstimate, Outcome, Placement, Trial
from tuner.workloads.program import Function
from tuner.workloads.session import entered
from tuner.workloads.task import TrainingTask

pytestmark = [
    pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
]
TRIAL = Trial("t001", "train", "one", {"lr": 0.1}, seed=3)
FILE_OF_CALLBACK = str(Path(tuner.__file__).with_name("lightning.py"))
LOSS = Objective("val_loss", "minimize")


@cache
def given() -> Any:
    """A training by Lightning. Tests import it, as the import takes seconds and every process collects this file."""
    return import_module("tests.support.lightning_training")


def events(function: Callable[..., Any], folder: Path | None = None, **options: Any) -> list[Any]:
    store = ProgramCheckpoints(folder, TRIAL)
    return list(run_program(Function(function), TRIAL, None, LOSS, store, **options))


def reports(events: list[Any]) -> list[EpochReport]:
    return [event for event in events if isinstance(event, EpochReport) and not event.again][1:]


def test_every_validation_is_reported_with_the_metrics_of_its_epoch(tmp_path: Path) -> None:
    heard = events(given().train, tmp_path)
    assert [told.epoch for told in reports(heard)] == [1, 2, 3]
    assert all(set(told.metrics) == {"val_loss", "train_loss"} for told in reports(heard))
    assert reports(heard)[0].metrics["train_loss"] > reports(heard)[0].metrics["val_loss"]  # not of the epoch before
    assert isinstance(heard[-1], Fit) and list(heard[-1].files) == [given().FILE]


def test_a_retry_goes_on_at_the_last_checkpoint_and_ends_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    modules: list[Any] = []

    def whole(config: dict[str, Any]) -> None:
        modules.append(given().trained(config["lr"], given().ReportCallback(), epochs=4))

    whole_reports = reports(events(whole))
    answers = iter([False, True])
    with pytest.raises(Stopped):
        events(whole, tmp_path, stop_asked=lambda: next(answers))
    again = reports(events(whole, tmp_path))
    assert [told.epoch for told in again] == [3, 4]
    assert [told.metrics for told in again] == [told.metrics for told in whole_reports[2:]]
    assert modules[-1].steps == 8


@pytest.mark.parametrize(("asked", "ending"), [("prune_asked", Pruned), ("stop_asked", Stopped)])
def test_a_trial_that_is_to_end_ends_fit(asked: str, ending: type[Exception]) -> None:
    module = given().Sum(0.1)
    trainer = given().lightning.Trainer(
        max_epochs=50, callbacks=[given().ReportCallback("val_loss")], **given().QUIET
    )
    with pytest.raises(ending):
        events(lambda config: trainer.fit(module, given().batches(), given().batches()), **{asked: lambda: True})
    assert (module.steps, trainer.state.status) == (4, "interrupted")


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"val_check_interval": 0.5}, [1, 2, 3, 4]),
        ({"val_check_interval": 3, "check_val_every_n_epoch": None}, [1, 2]),
        ({"check_val_every_n_epoch": 2}, [2]),
    ],
)
def test_no_epoch_is_reported_twice(options: dict[str, Any], epochs: list[int]) -> None:
    heard = events(lambda config: given().trained(config["lr"], given().ReportCallback(), epochs=2, **options))
    assert [told.epoch for told in reports(heard)] == epochs


def test_metrics_are_chosen_and_renamed() -> None:
    chosen = given().ReportCallback({"val_loss": "train_loss"}, checkpoint=False)
    heard = events(lambda config: given().trained(config["lr"], chosen, epochs=1))
    assert list(reports(heard)[0].metrics) == ["val_loss"]
    with pytest.raises(WorkloadError, match=r"val_loss, train_loss was logged, but not 'val_acc', which its metrics"):
        events(lambda config: given().trained(config["lr"], given().ReportCallback(["val_acc"])))


def test_a_checkpoint_that_could_run_code_is_refused(tmp_path: Path) -> None:
    class Odd(given().Sum):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["path"] = Path("x")

    def train(config: dict[str, Any]) -> None:
        trainer = given().lightning.Trainer(max_epochs=1, callbacks=[given().ReportCallback()], **given().QUIET)
        trainer.fit(Odd(0.1), given().batches(), given().batches())

    with pytest.raises(WorkloadError, match=r"the checkpoint holds pathlib\.\w+: expected tensors and plain values"):
        events(train, tmp_path)


def test_outside_of_a_trial_metrics_are_printed_and_nothing_is_saved(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given().lightning.Trainer, "save_checkpoint", lambda *_: pytest.fail("saved"))
    callback = given().ReportCallback("val_loss")
    given().trained(0.1, callback, epochs=1)
    assert capsys.readouterr().out.splitlines()[-1].startswith('{"val_loss": 0.')
    assert callback.ckpt_path is None and tuner.checkpoint() is None


def test_a_trial_in_a_process_beside_the_study_trains_by_lightning(tmp_path: Path) -> None:
    plan = make_plan([ram_device()], [2 * GB], packing="uniform", buffer_bytes=0, max_workers=1, threads=1)
    with closing(ChildExecutor()) as executor:
        executor.open({"train": TrainingTask(Function(given().train), None, objective=LOSS)}, plan, tmp_path)
        executor.submit(Placement(TRIAL, MemoryEstimate.given(2.0), ram_device(), 1.0, 2 * GB, 1))
        (ended,) = (event for event in until_the_end(executor))
    assert (ended.error, ended.status, ended.epochs) == ("", "completed", 3)
    assert ended.metrics["val_loss"] < 0.5


def until_the_end(executor: ChildExecutor) -> Iterator[Outcome]:
    while True:
        for event, _ in executor.poll(1.0):
            if isinstance(event, Outcome):
                yield event
                return


def test_pytorch_lightning_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    other = pytest.importorskip("pytorch_lightning")
    made: list[type[Any]] = []
    with monkeypatch.context() as not_imported:
        not_imported.delitem(sys.modules, "lightning")
        made.append(run_path(FILE_OF_CALLBACK)["ReportCallback"])
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)  # as if it were not installed
    made.append(run_path(FILE_OF_CALLBACK)["ReportCallback"])
    assert [issubclass(callback, other.Callback) for callback in made] == [True, True]
    module = type(
        "OtherSum", (other.LightningModule,), {**vars(given().Sum), "__init__": other.LightningModule.__init__}
    )()
    module.layer, module.lr, module.steps = nn.Linear(4, 1), 0.1, 0
    trainer = other.Trainer(max_epochs=2, callbacks=[made[0]()], **given().QUIET)
    heard = events(lambda config: trainer.fit(module, given().batches(), given().batches()))
    assert [told.epoch for told in reports(heard)] == [1, 2]


def test_without_lightning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ImportError, match=r"lightning is not installed: .*\[lightning\]'$"):
        run_path(FILE_OF_CALLBACK)


def test_epochs_of_two_trainings_in_a_trial_follow_each_other() -> None:
    def twice(config: dict[str, Any]) -> None:
        for _ in range(2):
            given().trained(config["lr"], given().ReportCallback(), epochs=2)

    assert [told.epoch for told in reports(events(twice))] == [1, 2, 3, 4]


def test_a_callback_that_has_nothing_to_report_says_why() -> None:
    from tuner.lightning import ReportCallback

    session = Mock(reports=0)
    with entered(session):
        ReportCallback().on_train_end(Mock(), None)
    assert re.match("ReportCallback reports .*, and Trainer.* ran none: give it ", session.nothing)
