"""One configuration of a study again: longer, on all the data, or to the same digits. ``tuner train``."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InputError, ParameterError, Spelling, both_given, in_python, option
from tuner.execution.worker import to_bytes
from tuner.machine.interrupts import Immediate, orderly
from tuner.records.files import BEST, TRAIN
from tuner.reporting import phases
from tuner.reporting.console import make_console, print_text
from tuner.reporting.texts import count_text
from tuner.reporting.training import figures_table
from tuner.spec.commands import TrainOptions
from tuner.spec.options import public
from tuner.spec.settings import Settings
from tuner.spec.spelling import arguments
from tuner.study.repeat import load_best_call, program
from tuner.study.retraining.figures import differing, judge, written_figures
from tuner.study.retraining.in_process import trained
from tuner.study.retraining.model_folder import about_it, make_folder, save
from tuner.study.retraining.past_trial import find_trial
from tuner.study.retraining.run import Run, check_room, choose_device, estimate_memory, load_data, plan_run
from tuner.trial import GB, Device, MemoryEstimate
from tuner.workloads.base import Trainable
from tuner.workloads.lookup import classes_of, texts_of
from tuner.workloads.protocols import describe_data, joined_splits
from tuner.workloads.task import TrainingTask


@dataclass(frozen=True)
class TrainingResult:
    """What training one configuration came to.

    Attributes:
        folder: where the model is: ``tuner.load_best(folder)`` gives it.
        metrics: of the epoch that was kept, as they are written; with all data the training loss alone.
        study: those of the study's trial.
        differences: where nothing was changed, the metrics that are others, with the study's value first; else None.
    """

    folder: Path
    metrics: Mapping[str, float | None]
    study: Mapping[str, float | None]
    differences: Mapping[str, tuple[float | None, float | None]] | None


@public(TrainOptions)
def train(options: TrainOptions) -> TrainingResult:
    """Trains one configuration of a study again, in this process: what ``tuner train`` does.

    Ctrl-C ends it at once; the weights of the best epoch so far are saved then, too.

    Raises:
        InputError: something given cannot be used, or there is not enough memory; nothing has been written.
        Differs: ``exact``, and a figure is another; the model has been saved.
        Diverged: the training loss is no longer a finite number, or has exploded.
        ExecutionError: memory has run out, or the model cannot be written.
        KeyboardInterrupt: after the best epoch's weights have been saved, if there was one.
    """
    return train_again(options, in_python)


def train_again(options: TrainOptions, spelling: Spelling) -> TrainingResult:
    """What ``train`` does; ``spelling`` is how what it prints names parameters."""
    folder = _checked(options)
    past = find_trial(folder, options.trial, options.workload, options.seed)
    run = plan_run(past, options)
    phases.show("loading data")
    found, same = load_data(run, options.data, options.exact)
    target = choose_device("cpu" if options.exact and options.device == "auto" else options.device)
    data = joined_splits(past.workload, found) if options.all_data else found
    task = TrainingTask(past.workload, data, asked=past.objective)
    estimate = estimate_memory(task, run.trial, target)
    console = make_console(spelling)
    print_text(console, _head(run, describe_data(past.workload, found), target, estimate))
    for note in past.notes:
        print_text(console, f"note: {note}")
    if not same:
        print_text(
            console,
            f"note: the data are not the study's, so figures are of something else: {options.data or past.source}",
        )
    check_room(run.trial, target, estimate)
    folder = make_folder(options.output, run.trial.workload)
    interrupt, began = Immediate(), time.time()
    with orderly(interrupt):
        fitted, broken = trained(run, task, target, folder, console, interrupt)
        about = about_it(
            _command(options, past.workload), run, options.data or past.source, target, fitted, broken, began
        )
        save(folder, {BEST: to_bytes(run.trial, fitted), TRAIN: about.to_json()})
    here = written_figures(fitted)
    changed = run.changes or not same or broken or past.row.status != "completed"
    result = TrainingResult(folder, here, past.metrics, None if changed else differing(here, past.metrics))
    given = "" if _is_found_again(past.workload) else "workload=…"
    with suppress(OSError):  # nobody reads it any more
        console.print(figures_table(here, past.metrics, (run.trial.seed, past.row.seed)))
        print_text(console, f"saved: {folder / BEST}; {load_best_call(folder, given)} gives the model")
    if broken:
        print_text(
            console, f"interrupted: what is saved are the weights of epoch {here['best_epoch']}, the best so far"
        )
        raise KeyboardInterrupt
    if result.differences is not None:
        judge(console, result.differences, past, target, options.exact)
    return result


def _checked(options: TrainOptions) -> Path:
    """The study's folder; refuses what cannot be used whatever the study is."""
    Settings.of({"output": options.output}).check()
    if options.study is None:
        raise InputError(f"{option('study')}: give the folder of a study")
    if options.exact and options.device == "cuda":
        rule = "on GPUs the last digits differ from run to run, as sums are made in any order"
        raise ParameterError("exact", True, rule, f"use {option('device', 'cpu')}")
    if options.exact and options.all_data:
        raise both_given("exact", "all_data", "on other data other figures come out")
    return Path(options.study)


def _head(run: Run, about: str, device: Device, estimate: MemoryEstimate) -> str:
    past, trial = run.past, run.trial
    ends = f", of which the first {run.last_epoch}" if run.last_epoch < trial.epochs else ""
    threads = f"{run.threads} thread{'s' if run.threads > 1 else ''}"
    epochs = count_text(int(trial.config["epochs"]), "epoch")
    lines = {
        "from": f"{past.folder}: {past.row.trial_id} {trial.name}, {past.row.status}",
        "chosen": past.chosen,
        "data": about + ("; all of it to train on" if run.all_data else ""),
        "training": f"{epochs}{ends}, seed {trial.seed}, {threads} on {device.label}",
        "memory": f"{estimate}; {device.free_bytes / GB:.2f} GB free on {device.label}",
    }
    return "\n".join(f"{label:<10} {text}" for label, text in lines.items() if text)


def _is_found_again(workload: Trainable) -> bool:
    return None not in classes_of([workload]).values()


def _command(options: TrainOptions, workload: Trainable) -> str:
    """What a terminal would be told; a call, where the workload is an object that no text finds again."""
    if not _is_found_again(workload):
        return "tuner.train()"
    if options.workload is not None:
        texts = texts_of(options.workload)
        options = options.changed(workload=texts if isinstance(texts, str) else texts[0])
    return f"{program()} {shlex.join(['train', *arguments(options)])}"
