"""What would be read for ever is refused at once, whoever reads it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import tuner
from tests.support.attempts import attempt
from tuner.datasets.can_frames import read_frames, read_parquet
from tuner.datasets.swc import read_swc
from tuner.errors import ExecutionError, InputError
from tuner.execution.stop_requests import STOP, StopRequests
from tuner.machine.safe_files import not_following, regular
from tuner.records.attempts import to_csv
from tuner.records.journal import Journal, read_attempts
from tuner.records.study_record import read_study
from tuner.search.parsing import parse_file

READERS: dict[str, Callable[[Path], object]] = {
    "a.yaml": parse_file,
    "a.swc": read_swc,
    "a.csv": read_frames,
    "a.parquet": read_parquet,
    "model.toml": lambda path: tuner.estimate(str(path)),
    "study.json": lambda path: read_study(path.parent),
    "attempts.jsonl": read_attempts,
    "best.pt": lambda path: tuner.load_best(path.parent),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_told(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="it is a pipe or a device; give a file") as caught:
        READERS[name](path)
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_a_pipe_is_no_journal_to_go_on_with(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "attempts.jsonl")
    with pytest.raises(OSError, match="it is a pipe or a device"):
        Journal(tmp_path / "attempts.jsonl")


def test_a_pipe_in_a_studys_folder_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("decisions.log", STOP):
        os.mkfifo(tmp_path / name)
    with (
        pytest.raises(OSError, match="No such device or address"),
        open(tmp_path / "decisions.log", "a", opener=not_following),
    ):
        pass
    requests = StopRequests(tmp_path)
    assert not requests.stop_requested()
    with pytest.raises(ExecutionError, match="stop cannot be written: "):
        requests.stop_all()


def test_a_file_is_refused_by_its_size_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    file.write_text(to_csv([attempt()]))
    assert regular(file, most_bytes=2**20) == file
    os.truncate(file, 2**40)
    with pytest.raises(OSError, match="it has 1,048,576 MB, more than 1"):
        regular(file, most_bytes=2**20)
