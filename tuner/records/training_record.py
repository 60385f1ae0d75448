"""``train.json``: how a model was trained again from a trial of a study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tuner.errors import InputError
from tuner.machine.regular_files import MOST_BYTES, regular
from tuner.records.checking import Amount, CheckedValue, Metric, Name, Text, TrialId, Whole, checked_json
from tuner.records.files import TRAIN


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """The content of ``train.json``, in order."""

    command: Text  # the user's command
    status: Text
    study: Text  # the folder of the study
    trial: TrialId  # the trial's id
    workload: Name
    classes: Mapping[str, str | None]  # as in ``StudyRecord``
    name: Name
    seed: Whole
    config: Mapping[str, CheckedValue]
    epochs: Whole  # the last epoch
    all_data: bool  # whether no data were held out
    data: Text  # where the data were
    device: Text
    threads: Whole
    metrics: Mapping[str, Metric]  # the model's
    study_metrics: Mapping[str, Metric]  # those of the study's trial
    versions: Mapping[str, str]
    started: Text
    duration_s: Amount

    def to_json(self) -> bytes:
        """The content of ``train.json``."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


def read_training(folder: Path) -> TrainingRecord:
    """The content of a folder's ``train.json``; an InputError is raised if it cannot be read or is damaged."""
    path = folder / TRAIN
    try:
        return checked_json(TrainingRecord, regular(path, MOST_BYTES).read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: is damaged ({error}); train the model again") from error
