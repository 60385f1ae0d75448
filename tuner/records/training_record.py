"""``train.json``: how a model came about that was trained again from a trial of a study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from tuner.errors import InputError
from tuner.records.checking import Amount, CheckedValue, Metric, Name, Text, TrialId, Whole, checked_json
from tuner.records.files import TRAIN


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What ``train.json`` says, in its order."""

    command: Text  # what the user called
    status: Text
    study: Text  # the folder of the study
    trial: TrialId  # which of its trials it is
    workload: Name
    classes: Mapping[str, str | None]  # as in ``StudyRecord``
    name: Name
    seed: Whole
    config: Mapping[str, CheckedValue]
    epochs: Whole  # training ended after this one
    all_data: bool  # whether nothing was held out
    data: Text  # where the data were
    device: Text
    threads: Whole
    metrics: Mapping[str, Metric]  # what came of it
    study_metrics: Mapping[str, Metric]  # what came of the study's trial
    versions: Mapping[str, str]
    started: Text
    duration_s: Amount

    def to_json(self) -> bytes:
        """The content of ``train.json``."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


def read_training(folder: Path) -> TrainingRecord:
    """What the ``train.json`` in a folder says.

    Raises:
        InputError: it cannot be read, or something in it is not what it must be.
    """
    path = folder / TRAIN
    try:
        return checked_json(_adapter(), path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: is damaged ({error}); train the model again") from error


@cache
def _adapter() -> TypeAdapter[TrainingRecord]:
    return TypeAdapter(TrainingRecord)
