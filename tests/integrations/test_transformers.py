"""The Trainer of transformers in a trial."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import tuner
from tuner.objective import Objective
from tuner.training.endings import Fit, Pruned, Stopped
from tuner.training.program import run_program
from tuner.training.program_checkpoints import ProgramCheckpoints
from tuner.trial import EpochReport, Trial
from tuner.workloads.program import Function
from tuner.workloads.session import entered

# Tests import transformers themselves, as the import takes seconds and every process collects this file.
pytestmark = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("accelerate")), reason="needs tuner[transformers]"
)
TRIAL = Trial("t001", "train", "one", {"lr": 0.01}, seed=3)
ACCURACY = Objective("eval_accuracy", "maximize")
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def texts(number: int) -> list[dict[str, torch.Tensor]]:
    """Random token ids; the first says the label."""
    drawn = torch.randint(1, 20, (number, 6), generator=torch.Generator().manual_seed(number))
    return [{"input_ids": tokens, "labels": (tokens[0] > 9).long()} for tokens in drawn]


def report_callback(*metrics: Any) -> Any:
    from tuner.transformers import ReportCallback

    return ReportCallback(*metrics)


def trainer_of(folder: Path, callback: Any, data: Any = None, **arguments: Any) -> Any:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    chosen = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 3, **arguments}
    return Trainer(
        BertForSequenceClassification(BertConfig(vocab_size=20, **TINY)),
        TrainingArguments(str(folder), report_to=[], disable_tqdm=True, use_cpu=True, learning_rate=0.01, **chosen),
        train_dataset=texts(32),  # 4 steps in an epoch
        eval_dataset=texts(16) if data is None else data,
        compute_metrics=lambda evaluated: {
            "accuracy": (evaluated.predictions.argmax(1) == evaluated.label_ids).mean()
        },
        callbacks=[callback],
    )


def events(function: Callable[[], Any], folder: Path | None = None, **options: Any) -> list[Any]:
    store = ProgramCheckpoints(folder, TRIAL)
    program = Function(lambda config: function())
    return list(run_program(program, TRIAL, None, ACCURACY, store, **options))


def reports(events: list[Any]) -> list[EpochReport]:
    return [event for event in events if isinstance(event, EpochReport) and not event.again][1:]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def test_every_evaluation_is_reported_with_the_checkpoint_of_its_epoch(tmp_path: Path, kept: Path) -> None:
    heard = events(lambda: trainer_of(tmp_path, report_callback()).train(), kept)
    assert [told.epoch for told in reports(heard)] == [1, 2, 3]
    assert all(set(told.metrics) == {"eval_loss", "eval_accuracy"} for told in reports(heard))
    best = int(heard[-1].metrics["best_epoch"])
    state = bytes(heard[-1].files["trainer_state.json"].tolist())
    assert f'"global_step": {4 * best},'.encode() in state


def test_a_retry_goes_on_at_the_last_checkpoint(tmp_path: Path, kept: Path) -> None:
    steps: list[int] = []

    def train() -> None:
        callback = report_callback()
        trainer = trainer_of(tmp_path / "mine", callback)
        trainer.train(resume_from_checkpoint=callback.resume_from_checkpoint)
        steps.append(trainer.state.global_step)

    whole = reports(events(train))
    answers = iter([False, True])
    with pytest.raises(Stopped):
        events(train, kept, stop_asked=lambda: next(answers))
    again = reports(events(train, kept))
    assert [(told.epoch, told.metrics) for told in again] == [(whole[2].epoch, whole[2].metrics)]
    assert steps == [12, 12]


@pytest.mark.parametrize("save", ["epoch", "no"])
def test_a_pruned_trial_ends_train(tmp_path: Path, kept: Path, save: str) -> None:
    trainer = trainer_of(tmp_path, report_callback("eval_accuracy"), save_strategy=save)
    with pytest.raises(Pruned):
        events(trainer.train, kept, prune_asked=lambda: True)
    assert trainer.state.global_step == 4


def test_evaluations_within_epochs_are_counted_and_that_of_the_untrained_model_is_none(tmp_path: Path) -> None:
    often = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "no", "eval_on_start": True}
    heard = events(lambda: trainer_of(tmp_path, report_callback(), **often).train())
    assert [told.epoch for told in reports(heard)] == [1, 2, 3, 4]


def test_evaluations_of_several_data_sets_are_one_report(tmp_path: Path) -> None:
    data = {"near": texts(16), "far": texts(8)}
    callback = report_callback({"eval_accuracy": "eval_far_accuracy", "near": "eval_near_accuracy"})
    heard = events(lambda: trainer_of(tmp_path, callback, data, save_strategy="no", num_train_epochs=2).train())
    assert [set(told.metrics) for told in reports(heard)] == [{"eval_accuracy", "near"}] * 2


@pytest.mark.parametrize(("within", "reported"), [("no", 1), ("epoch", 2)])
def test_an_evaluation_after_the_training_is_reported_if_there_was_none_in_it(
    tmp_path: Path, within: str, reported: int
) -> None:
    def train() -> None:
        trainer = trainer_of(
            tmp_path, report_callback(), eval_strategy=within, save_strategy="no", num_train_epochs=2
        )
        trainer.train()
        trainer.evaluate()

    heard = events(train)
    assert len(reports(heard)) == reported and isinstance(heard[-1], Fit)


def test_outside_of_a_trial_metrics_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = report_callback("eval_loss")
    assert callback.resume_from_checkpoint is None
    trainer_of(tmp_path, callback, num_train_epochs=1).train()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith('{"'))
    assert line.startswith('{"eval_loss": ') and line.endswith(', "epoch": 1}')


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"transformers is not installed: .*\[transformers\]'$"):
        run_path(str(Path(tuner.__file__).with_name("transformers.py")))


def test_an_epoch_that_max_steps_cuts_off_counts_as_one(tmp_path: Path) -> None:
    cut = {"max_steps": 9, "save_strategy": "no", "eval_strategy": "epoch"}
    heard = events(lambda: trainer_of(tmp_path, report_callback({"eval_accuracy": "eval_loss"}), **cut).train())
    assert [told.epoch for told in reports(heard)] == [1, 2, 3]


def test_a_callback_that_has_nothing_to_report_says_why() -> None:
    from tuner.transformers import ReportCallback

    session = Mock(reports=0)
    with entered(session):
        ReportCallback().on_train_end(Mock(), Mock(), None)
    assert re.match("ReportCallback reports .*, and Trainer.* ran none: give it ", session.nothing)
