"""One configuration of a study again: longer, on all the data, or to the same digits. ``tuner train``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.errors import ExecutionError, InputError, Spelling, TunerError, in_python, option
from tuner.records.attempts import Attempt
from tuner.records.files import BEST
from tuner.reporting import phases
from tuner.reporting.console import make_console, print_text
from tuner.reporting.result_tables import figures_lines, print_lines
from tuner.spec.commands import TrainOptions
from tuner.spec.options import public
from tuner.spec.settings import Settings
from tuner.spec.spelling import arguments, program
from tuner.spec.stored_options import CALL, to_stored
from tuner.spec.study_spec import StudySpec
from tuner.study.past_trial import PastTrial, find_trial, load_best_call
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.study.study_json import versions
from tuner.trial import NODES, RANKS, Config, Device
from tuner.workloads.task import Selection, on_all_data

Differences = Mapping[str, tuple[float | None, float | None]]  # the study's value and the new one, by metric
SAME = ("python", "torch", "numpy")  # the packages that figures depend on


class Differs(TunerError):
    """The metrics should have been those of the study, and were not."""


@dataclass(frozen=True)
class TrainingResult:
    """What training one configuration came to.

    Attributes:
        folder: where the model is: ``tuner.load_best(folder)`` gives it. It is the folder of a study of one trial.
        metrics: of the epoch that was kept, as they are written; with all data the training loss alone.
        study: those of the study's trial.
        differences: where nothing was changed, the metrics that are others, with the study's value first; else None.
    """

    folder: Path
    metrics: Mapping[str, float | None]
    study: Mapping[str, float | None]
    differences: Differences | None


@public(TrainOptions)
def train(options: TrainOptions) -> TrainingResult:
    """Trains one configuration of a study again, as a study of this trial alone: what ``tuner train`` does.

    Raises:
        InputError: something given cannot be used, or there is not enough memory; nothing has been written.
        Differs: ``exact``, and a figure is another; the model has been saved.
        ExecutionError: the trial was not completed; its row in the folder says why.
        KeyboardInterrupt: after the trial's checkpoint has been written, so that the folder can be resumed.
    """
    return train_again(options, in_python)


def train_again(options: TrainOptions, spelling: Spelling) -> TrainingResult:
    """What ``train`` does; ``spelling`` is how the printed texts name parameters."""
    if options.study is None:
        raise InputError(f"{option('study')}: give the folder of a study")
    past = find_trial(Path(options.study), options.trial, options.workload, options.seed)
    selection, settings, changes = _planned(past, options)
    console = make_console(spelling)
    row = past.row
    print_text(console, f"{'from':<10} {past.folder}: {row.trial_id} {row.name} (seed {row.seed}), {row.status}")
    for note in past.notes:
        print_text(console, f"note: {note}")
    if option("data", settings.data) in changes:
        note_text = "the data are not the study's, so the metrics cannot be compared"
        print_text(console, f"note: {note_text}: {settings.data}")
    spec = StudySpec(
        [selection],
        settings,
        label="train",
        command=_command(options, past),
        options=to_stored(settings),
        from_python=spelling is in_python,
    )
    result = run_study(spec)
    here, there = _metrics(result), row.metrics
    compared = not changes and row.status == "completed"
    training = TrainingResult(Path(result), here, there, differing(here, there) if compared else None)
    with suppress(OSError):  # nobody reads it any more
        print_lines(console, figures_lines(here, there, (settings.seed, row.seed)))
        given = "" if past.spec else "workload=…"
        print_text(
            console, f"saved: {training.folder / BEST}; {load_best_call(training.folder, given)} gives the model"
        )
    if training.differences is not None:
        print_text(console, _verdict(training.differences, past, result.plan.devices[0], exact=options.exact))
    return training


def _planned(past: PastTrial, options: TrainOptions) -> tuple[Selection, Settings, list[str]]:
    """The trial with what the options change, and those by which it is another training than the study's.

    Raises:
        InputError: an option cannot be used, or the data cannot be read.
    """
    chosen = past.selection(options.data)
    values = chosen.configurations[0].values
    settings = _settings(past, values, options)
    phases.show("loading data")
    data = _load(chosen, past, options)
    was = {"seed": past.row.seed, "epochs": values["epochs"], "threads": past.threads}
    changes = [option(name, getattr(settings, name)) for name in was if getattr(settings, name) != was[name]]
    changes += [option("device", "cuda")] if options.exact and options.device == "cuda" else []
    changes += [option("all_data")] if options.all_data else []
    changes += [] if past.has_data(data) else [option("data", settings.data)]
    if options.exact:
        _check_exact(past.row, changes)
    selection = replace(chosen, load_data=lambda: data, objective=past.objective)
    if selection.last_epoch is not None:
        selection = replace(selection, last_epoch=options.epochs or selection.last_epoch)
    elif options.all_data:
        selection = on_all_data(selection, _last_epoch(past, options))
    return selection, settings, changes


def _settings(past: PastTrial, values: Config, options: TrainOptions) -> Settings:
    """The options of the study that trains the trial again; an ``InputError`` if the folder cannot be used."""
    settings = Settings(
        workload=past.spec or past.workload,
        config=[{key: value for key, value in values.items() if key != NODES} | {"name": past.row.name}],
        data=options.data or past.source,
        **past.loading,
        epochs=options.epochs or int(values["epochs"]),
        seed=past.row.seed if options.seed is None else options.seed,
        split_seed=past.study.data_seed,
        threads=options.threads or past.threads,
        device="cpu" if options.exact else options.device,
        max_workers=int(values.get(RANKS, 1)),
        gpu_memory_buffer_gb=0.0,  # what is free is enough, as nothing else of the study runs
        output=options.output,
        report=False,
    )
    settings.check()
    return settings


def _last_epoch(past: PastTrial, options: TrainOptions) -> int:
    """After which epoch a training on all data ends: without held-out data none can be chosen."""
    last = options.epochs or int(past.row.metrics.get("best_epoch") or 0)
    if not last:
        trial = f"{past.row.trial_id} ({past.row.status})"
        raise InputError(f"{option('all_data')}: {trial} has no best epoch: give {option('epochs')}")
    return last


def _load(selection: Selection, past: PastTrial, options: TrainOptions) -> object:
    """The data, split as the study had them."""
    try:
        return selection.load_checked()
    except InputError as error:
        if options.data is not None:
            raise
        raise InputError(
            f"{option('study', str(past.folder))}: its data: {error}; say by {option('data')} where they are now"
        ) from error


def _metrics(result: StudyResult) -> Mapping[str, float | None]:
    """The figures of the one trial; raises ``ExecutionError`` if it is not completed with its weights."""
    (row,) = result.trials
    if row.status != "completed":
        raise ExecutionError(f"{row.name}: {row.status}: {row.error}; its record is in {result.folder}")
    if not row.weights_kept:
        raise ExecutionError(f"{row.name}: {row.error}")
    return row.metrics


def _command(options: TrainOptions, past: PastTrial) -> str:
    """What a terminal would be told; a call, if the workload is an object that no text finds again."""
    if past.spec is None:
        return CALL
    if options.workload is not None:
        options = options.changed(workload=past.spec)
    return f"{program()} {shlex.join(['train', *arguments(options)])}"


def differing(here: Mapping[str, float | None], study: Mapping[str, float | None]) -> Differences:
    """The study's metrics that differ; metrics that only the new training has do not count."""
    return {name: (value, here.get(name)) for name, value in study.items() if value != here.get(name)}


def _verdict(differences: Differences, past: PastTrial, device: Device, *, exact: bool) -> str:
    """Whether the metrics are those of the study, and if not, what may be the reason.

    Raises:
        Differs: they did not, although that was asked for.
    """
    if not differences:
        return "the metrics equal those of the study, to the last digit"
    both = ", ".join(f"{name} {there} there and {here} here" for name, (there, here) in differences.items())
    reasons = "; ".join(_reasons(past, device)) or "no reason is known"
    text = f"the metrics are not those of the study: {both} ({reasons})"
    if exact:
        raise Differs(f"{option('exact')}: {text}")
    return text


def _reasons(past: PastTrial, device: Device) -> list[str]:
    reasons, now, then = [], versions(), past.study.versions
    if others := [f"{name} {then.get(name)}" for name in SAME if then.get(name) != now[name]]:
        reasons.append(f"the study ran with {', '.join(others)}")
    names = [device.name for device in past.study.plan.devices]
    if device.name not in names:
        reasons.append(f"the study ran on {', '.join(dict.fromkeys(names))}")
    if device.kind == "cuda":
        reasons.append("on a GPU the last digits differ from run to run")
    return reasons


def _check_exact(row: Attempt, changes: Sequence[str]) -> None:
    """Refuses to compare figures to the last digit where they cannot be the same.

    Raises:
        InputError: the trial is not completed, ran on a GPU, or is trained with other options (``changes``).
    """
    where = option("exact")
    if row.status != "completed":
        raise InputError(f"{where}: {row.trial_id} is {row.status}: it has no metrics to reproduce")
    if not str(row.device).endswith("cpu"):
        raise InputError(
            f"{where}: {row.trial_id} ran on {row.device}, and on GPUs the last digits differ from run to run: "
            "leave it out"
        )
    if changes:
        raise InputError(f"{where} and {changes[0]}: the study's trial had another value: leave one of them out")
