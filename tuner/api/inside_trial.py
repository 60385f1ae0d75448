"""What a trial's own program calls: ``tuner.report``, ``tuner.checkpoint`` and ``tuner.trial_dir``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.workloads.session import current, to_numbers

if TYPE_CHECKING:
    State = Mapping[str, object] | str | PathLike[str]


def report(
    given: Mapping[str, object] | None = None,
    /,
    *,
    epoch: int | None = None,
    checkpoint: State | None = None,
    **metrics: object,
) -> None:
    """Reports the metrics of a trial from within its training: ``tuner.report(val_accuracy=0.9, epoch=3)``.

    Outside of a trial the metrics are printed as a line of JSON, so that the same program runs by itself.

    Args:
        given: the metrics as a mapping, in place of or beside names.
        epoch: the epoch, counted from 0 or 1. By default the number of reports.
        checkpoint: what to keep of the training: a state dict of tensors and plain values, or a folder of files.
            ``tuner.checkpoint`` returns it after a retry or a resume. The best trial's is the study's ``best.pt``.
        metrics: numbers by name.

    Raises:
        InputError: a metric is no number or lacks, or the checkpoint cannot be used.
        TrialEnd: the trial was pruned, or the study ends. It is no ``Exception``: let it pass.
    """
    session = current()
    if not isinstance(given, (Mapping, NoneType)) or not (session or given or metrics):
        raise InputError("tuner.report: give metrics by name; tuner.write_report() writes a study's page")
    named = {**(given or {}), **metrics}
    if session is not None:
        session.report(named, epoch, checkpoint)  # type: ignore[arg-type]
    else:
        counted = {} if epoch is None else {"epoch": epoch}
        print(json.dumps({**to_numbers(named), **counted}), flush=True)


def checkpoint() -> Mapping[str, Any] | Path | None:
    """The trial's last checkpoint: the state dict, on the CPU, or a folder to read from; None without one.

    There is one after a retry, or when a study is resumed.
    """
    session = current()
    return None if session is None else session.checkpoint()


def trial_dir() -> Path:
    """The trial's own folder in the study's, for files that no other trial writes; made on first use.

    Outside of a trial it is the current folder. A retry and a resumed trial have the same folder again.
    """
    session = current()
    return Path.cwd() if session is None else session.folder()
