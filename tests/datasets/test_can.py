from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import tuner
from tests.support.can_files import lines_of, plain_rows, write_recordings
from tuner.datasets import can as module
from tuner.datasets.can import CanData, build, load_can, synthetic_can
from tuner.datasets.can_frames import Frames
from tuner.errors import DataError, InputError

REAL = Path(tuner.__file__).parents[1].parent / "shared/data/can"


def frames(identifiers: list[int], injected: list[int] | None = None) -> Frames:
    """A frame of each ID, a second apart, whose first byte is its number."""
    count = len(identifiers)
    data = np.zeros((count, 8), dtype=np.uint8)
    data[:, 0] = np.arange(count)
    flags = np.array(injected or [0] * count, dtype=bool)
    return Frames(np.arange(count) + 0.5, np.array(identifiers, dtype=np.int32), data, flags)


def assert_equal(one: CanData, other: CanData) -> None:
    for field in fields(CanData):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b), field.name
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None), field.name


@pytest.fixture
def can_folder(tmp_path: Path) -> Path:
    """Three recordings of five windows."""
    return write_recordings(tmp_path / "drives", synthetic_can(500))


# ------------------------------------------------------------------------------------------------ graphs


def test_a_window_is_a_graph_of_its_ids() -> None:
    data = build([("drive", frames([7, 5, 7, 7, 5] + [5] * 12))], 5, "one")
    assert (data.first.tolist(), data.first_edge.tolist()) == ([0, 2, 3, 4], [0, 3, 4, 5])
    assert data.ids.tolist() == [1, 2, 1, 1]
    assert data.edge[:, :3].T.tolist() == [[0, 1], [1, 0], [1, 1]]  # 5→7 once, 7→5 twice, 7→7 once
    assert data.edge_count.tolist() == [1, 2, 1, 4, 4]
    assert data.features[:2, 0].tolist() == pytest.approx([(1 + 4) / 2 / 255, (0 + 2 + 3) / 3 / 255])
    assert data.features[:2, 8:].tolist() == [pytest.approx([2 / 5, 4 / 5]), pytest.approx([3 / 5, 3 / 5])]
    assert not data.features[:, 1:8].any()


def test_what_was_built_holds_together() -> None:
    data, window = build(synthetic_can(700).items(), 50, "three"), 50
    nodes, edges = np.diff(data.first), np.diff(data.first_edge)
    assert (len(data), len(data.ids), data.edge.shape[1]) == (42, data.first[-1], data.first_edge[-1])
    assert (np.add.reduceat(data.edge_count, data.first_edge[:-1]) == window - 1).all()
    assert np.add.reduceat(data.features[:, 8], data.first[:-1]) == pytest.approx(np.ones(42))
    assert np.maximum.reduceat(data.features[:, 9], data.first[:-1]) == pytest.approx((window - 1) / window)
    assert (data.edge < np.repeat(nodes, edges)).all()
    assert (np.maximum.reduceat(data.edge.max(axis=0), data.first_edge[:-1]) == nodes - 1).all()
    assert (data.features >= 0).all()
    assert (data.features <= 1).all()


def test_the_vocabulary_is_of_normal_frames_in_training_windows() -> None:
    identifiers = [3, 9, 3, 3, 3, 3, 4, 2**29 - 1, 2**29 - 1, 4]  # windows of 2: six frames to train on
    data = build([("dos_a", frames(identifiers, [0, 1] + [0] * 8)), ("b", frames([6] * 10))], 2, "two")
    assert data.identifiers.tolist() == [3, 6]
    assert data.ids.tolist() == [1, 0, 1, 1, 0, 0, 0, 0, *[2] * 5]
    assert data.first.tolist() == [0, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13]  # nodes of unknown IDs are not one


def test_windows_with_an_injected_frame_are_attacks_named_by_their_recording() -> None:
    flags = [0, 0, 0, 0, 1, 0, 1, 1]
    parts = [("Fuzzy_b", frames([1] * 8, flags)), ("dos_b", frames([1] * 8, flags)), ("free_b", frames([1] * 8))]
    data = build(parts, 2, "three")
    assert data.label.tolist() == [0, 0, 1, 1] * 2 + [0] * 4
    assert data.attacks == ("none", "dos", "fuzzy")
    assert data.attack.tolist() == [0, 0, 2, 2, 0, 0, 1, 1, 0, 0, 0, 0]
    assert (data.recordings, data.recording.tolist()) == (("Fuzzy_b", "dos_b", "free_b"), [0] * 4 + [1] * 4 + [2] * 4)


def test_each_recording_is_split_by_time() -> None:
    data = build([("a", frames([1] * 21)), ("b", frames([1] * 7))], 2, "two")
    assert data.train.tolist() == [0, 1, 2, 3, 4, 5, 10]
    assert (data.validation.tolist(), data.test.tolist()) == ([6, 7, 11], [8, 9, 12])


# ------------------------------------------------------------------------------------------------ sources


def test_generated_traffic_has_attacks_in_every_part() -> None:
    data = load_can("synthetic")
    assert (len(data), data.attacks) == (750, ("none", "dos", "fuzzing"))
    for part in (data.train, data.validation, data.test):
        assert (np.bincount(data.attack[part], minlength=3) > len(part) / 10).all()
        assert not data.label[part[data.recording[part] == 0]].any()
    assert_equal(load_can("synthetic"), data)


@pytest.mark.parametrize("count", [1, 150, 3000])
def test_as_many_frames_are_generated_as_asked_for_in_order(count: int) -> None:
    for made in synthetic_can(count).values():
        assert len(made) == len(made.identifier) == len(made.data) == count
        assert (np.diff(made.time) >= 0).all()
    assert not np.array_equal(*(synthetic_can(count, seed=seed)["dos_synthetic"].time for seed in (1, 2)))


def test_no_frames_cannot_be_generated() -> None:
    with pytest.raises(InputError, match="frames 0: must be at least 1"):
        synthetic_can(0)


def test_files_are_read_as_they_were_written(can_folder: Path) -> None:
    data = load_can(str(can_folder))
    assert_equal(data, build(synthetic_can(500).items(), 100, "drives"))
    one = load_can(str(can_folder / "dos_synthetic.csv"), window=50)
    assert (one.name, one.recordings, len(one)) == ("dos_synthetic", ("dos_synthetic",), 10)


def test_texts_logs_and_parquet_of_a_folder_are_recordings_and_what_tells_of_them_is_not(tmp_path: Path) -> None:
    made, folder = plain_rows(synthetic_can(300)["dos_synthetic"]), tmp_path / "drives"
    folder.mkdir()
    for name, form in (("a.txt", "normal_run_data.txt"), ("b.LOG", "candump -l"), ("dos.csv", "Car-Hacking")):
        (folder / name).write_text("\n".join(lines_of(form, made)))
    columns = {
        "time": [row[0] for row in made],
        "id": [row[1] for row in made],
        "data": ["".join(row[2]) for row in made],
    }
    parquet.write_table(pa.table(columns), folder / "c.parquet")
    (folder / "README.txt").write_text("These are drives.")
    (folder / "LICENSE.txt").write_text("Yours.")
    data = load_can(str(folder))
    assert (data.recordings, data.attacks) == (("a", "b", "c", "dos"), ("none", "dos"))
    assert [(data.features[data.first[k]] == data.features[0]).all() for k in (3, 6, 9)] == [True] * 3


def test_a_recording_in_two_forms_is_refused(can_folder: Path) -> None:
    (can_folder / "dos_synthetic.log").write_text("(1.5) can0 044#11\n")
    with pytest.raises(
        DataError, match=r"dos_synthetic.csv and dos_synthetic.log have the same name: remove or rename one"
    ):
        load_can(str(can_folder))


@pytest.mark.parametrize("source", ["gone", "empty", "pipe"])
def test_a_source_without_files_is_refused(source: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "README.txt").write_text("")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=f"no .* '.*{source}': give a recording .*, a folder of recordings, or"):
        load_can(str(tmp_path / source))


def test_a_recording_of_fewer_than_three_windows_is_refused(can_folder: Path) -> None:
    reason = "'attack_free_synthetic' has 500 frames, 2 windows of 200, and training, .* need 3: give a longer one"
    with pytest.raises(DataError, match=reason):
        load_can(str(can_folder), window=200)


@pytest.mark.parametrize("window", [1, 0, -5, 2.5, 10**6])
def test_a_window_that_is_none_is_refused(window: Any) -> None:
    with pytest.raises(InputError, match=f"window {window}: must be a whole number of frames from 2 to 100,000"):
        load_can("synthetic", window=window)


# ------------------------------------------------------------------------------------------------ cache


def test_a_second_load_maps_what_the_first_has_built(can_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_can(str(can_folder))
    monkeypatch.setattr(module, "read", None)
    second = load_can(str(can_folder))
    assert_equal(first, second)
    arrays = [value for data in (first, second) for value in vars(data).values() if isinstance(value, np.ndarray)]
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in arrays)
    assert isinstance(second.recordings, tuple)


@pytest.mark.parametrize("change", ["file", "window"])
def test_other_files_and_windows_are_built_anew(change: str, can_folder: Path) -> None:
    before = load_can(str(can_folder))
    if change == "file":
        (can_folder / "fuzzing_synthetic.csv").unlink()
    after = load_can(str(can_folder), window=50 if change == "window" else 100)
    assert (len(before), len(after)) == (15, {"file": 10, "window": 30}[change])
    assert len(list(Path(os.environ["XDG_CACHE_HOME"]).glob("tuner/CanData/*"))) == 2


# ------------------------------------------------------------------------------------------------ real recordings


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no recordings in {REAL}")
def test_the_recordings_of_a_sonata_are_as_they_are_known() -> None:
    data = load_can(str(REAL))
    assert data.recordings == ("attack_free_sonata", "dos_sonata", "fuzzing_sonata")
    assert np.bincount(data.recording).tolist() == [500, 500, 500]
    assert np.bincount(data.recording, data.label).tolist() == [0, 262, 194]
    assert (len(data.identifiers), len(data.train), len(data.validation), len(data.test)) == (27, 900, 300, 300)
    unseen = np.minimum.reduceat(np.asarray(data.ids), data.first[:-1]) == 0
    assert np.array_equal(unseen, data.label > 0), "the rule 'an ID that is not known' is right everywhere"
