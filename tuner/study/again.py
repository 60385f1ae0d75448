"""How to have a configuration of a study again: as a command, or as a call."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.records.attempts import Attempt
from tuner.records.study_json import AUTO_BATCH, classes, workloads
from tuner.study.selection import source_of
from tuner.workloads.lookup import Classes, find_workload

FLAGS = {"overrides": "set", "study": "from"}  # options that the command line calls otherwise


def run_again(options: Mapping[str, Any], row: Attempt, threads: int | None, defaults: Mapping[str, Any]) -> str:
    """The command that runs one trial of a study again; on the CPU it gives the same figures.

    The number of threads is part of it, since the last digits of a sum depend on that; so is the memory with which
    the trial ended well, if that was more than was asked for.

    Args:
        options: the study's, by the parameters of ``run``.
        row: the trial's, as in the journal.
        threads: that the trial computed with; None where that is not known.
        defaults: of the options.
    """
    if not options["auto_memory"] and row.attempts > 1 and row.limit_gb:
        enough = math.ceil(100 * row.limit_gb) / 100
        options = {**options, "model_memory_gb": max(options["model_memory_gb"], enough)}
    split_seed = options["seed"] if options["split_seed"] is None else options["split_seed"]
    anew = {
        "only": row.name,
        "seed": row.seed,
        "seeds": 1,
        "split_seed": None if split_seed == row.seed else split_seed,
        "time_limit": None,
        "limit": None,
        "output": None,
        "resume": None,
        "threads": threads,
        "max_workers": None,
        "tensorboard": False,
        "mlflow": None,
        "wandb": None,
    }
    return f"{program()} {shlex.join(arguments({**options, **anew}, defaults))}"


def train_again(folder: Path, row: Attempt) -> str:
    """The command that trains one trial of a study again."""
    return f"{program()} train --from {shlex.quote(str(folder))} --trial {row.trial_id}"


def program() -> str:
    """The words by which this process's tuner is started again from this folder, also where ``tune`` is not found."""
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    return shlex.join([python, "-m", "tuner"])


def load_again(folder: Path, workload: str = "") -> str:
    """The call that gives the best model of a study that was started from Python.

    Args:
        folder: the study's.
        workload: the expression that makes the workload, where it cannot be found by a name.
    """
    return f"tuner.load_best({', '.join(filter(None, [repr(str(folder)), workload]))})"


def its_options(options: Mapping[str, Any], row: Attempt, study: Mapping[str, Any]) -> Mapping[str, Any]:
    """A study's options as far as they are of one trial: of its workload, and with the batch that it was given.

    Args:
        options: the study's, by the parameters of ``run``.
        row: the trial's, as in the journal.
        study: what ``study.json`` says.
    """
    if len(workloads(study)) > 1:
        options = _of_workload(options, row, classes(study))
    batch = study.get(AUTO_BATCH, {}).get(row.trial_id)
    if batch is None:
        return options
    key = find_workload(row.workload, classes(study)).memory_scales_with  # beside other trials it would be another
    others = [text for text in options["overrides"] if text.partition("=")[0] != key]
    return {**options, "overrides": [*others, f"{key}={batch}"]}


def arguments(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """The command-line arguments of a run: every option that has not its default."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + FLAGS.get(name, name).replace("_", "-")
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [word for text in _texts(value) for word in (flag, text)]
    return words


def values_again(row: Attempt) -> str:
    """A configuration's values as options of ``tune run``, where nothing else is known of its study."""
    return shlex.join(word for key, value in row.config.items() for word in ("--set", f"{key}={value}"))


def _texts(value: Any) -> list[str]:
    """What stands behind an option on the command line, each time that it is given."""
    if isinstance(value, Mapping):
        return [f"{key}={each}" for key, each in value.items()]
    return [str(each) for each in value] if isinstance(value, (list, tuple)) else [str(value)]


def _of_workload(options: Mapping[str, Any], row: Attempt, known: Classes) -> dict[str, Any]:
    """A study's options, without those that are of other workloads than a row's."""
    name = row.workload
    its_own = source_of(options["data"], name, known)
    overrides = [text for text in options["overrides"] if text.partition("=")[0] in row.config]
    skip_bad = options["skip_bad"] and find_workload(name, known).skips_bad_files
    named = {"workload": known.get(name, name), "data": its_own}
    return {**options, **named, "overrides": overrides, "skip_bad": skip_bad}
