"""CAN-bus recordings as graphs that all trials of a machine share, split by time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.cache import cached, file_key
from tuner.datasets.can_frames import Frames, read_frames, read_parquet
from tuner.datasets.can_graphs import window_graphs
from tuner.datasets.faults import reading
from tuner.datasets.spans import joined, starts
from tuner.errors import DataError, InputError

SUFFIXES = (".csv", ".txt", ".log", ".parquet")  # of the files that are read of a folder
NO_RECORDINGS = ("readme", "licen")  # what names of texts begin with that come along
VERSION = "2"  # of the cache: increase it when the built data change
HELD_OUT = 0.2  # the share of a recording's windows for validation, and the same for the test
FEWEST = 3  # the minimum number of windows of a recording
LARGEST_WINDOW = 100_000  # the maximum number of frames of a window


# eq=False: comparing arrays field by field has no single truth value.
@dataclass(frozen=True, eq=False)
class CanData:
    """G graphs of windows of CAN frames, with N nodes and E edges in total; one node for each ID of a window.

    A graph's nodes are in the order of their raw IDs. The vocabulary has the IDs of normal frames in training
    windows. Each unknown ID has its own node, with index 0.
    """

    identifiers: NDArray[np.int32]  # (V,) the vocabulary's CAN IDs, ascending: index k is ``identifiers[k - 1]``
    ids: NDArray[np.int32]  # (N,) each node's index in the vocabulary; 0 for an unknown ID
    # (N, 10): the means of a frame's 8 bytes / 255 (missing bytes are 0), the number of frames and the position of
    # the last one from 0, both divided by the window's length.
    features: NDArray[np.float32]
    first: NDArray[np.int64]  # (G + 1,) the start of each graph's nodes
    # (2, E) from a frame's node to the next frame's, numbered from 0 in each graph. Each pair occurs once; loops are
    # possible.
    edge: NDArray[np.int32]
    edge_count: NDArray[np.float32]  # (E,) how often each pair occurred
    first_edge: NDArray[np.int64]  # (G + 1,) the start of each graph's edges
    label: NDArray[np.int8]  # (G,) 1 if a frame of the window was injected
    recording: NDArray[np.int16]  # (G,) an index into ``recordings``
    attack: NDArray[np.int16]  # (G,) an index into ``attacks``; 0 if no frame was injected
    train: NDArray[np.int64]  # the first graphs of each recording
    validation: NDArray[np.int64]  # the graphs after them
    test: NDArray[np.int64]  # the last graphs
    name: str  # of the data set
    recordings: tuple[str, ...]  # the files' names without suffix
    attacks: tuple[str, ...]  # "none" and the first words of the names of recordings with injected frames

    def __len__(self) -> int:
        """Number of graphs."""
        return len(self.label)


def load_can(source: str, *, window: int = 100) -> CanData:
    """CAN-bus graphs by name or path.

    ``source`` is ``synthetic`` (generated), a recording in a form that ``can_forms.py`` knows or in parquet, or a
    folder of recordings. A graph has ``window`` frames. Raises ``DataError`` with file, line and value if there is no
    file or one is invalid.
    """
    if not isinstance(window, int) or not 2 <= window <= LARGEST_WINDOW:
        raise InputError(f"window {window!r}: must be a whole number of frames from 2 to {LARGEST_WINDOW:,}")
    if source == "synthetic":
        from tuner.datasets.synthetic_can import synthetic_can

        return build(synthetic_can().items(), window, "synthetic CAN traffic")
    path = Path(source).expanduser()
    files = _files(path)

    def read() -> CanData:
        name = path.resolve().name if path.is_dir() else path.stem
        return build(((file.stem, _read(file)) for file in files), window, name)

    return cached(CanData, file_key(path, files, VERSION, window), read)


def build(recordings: Iterable[tuple[str, Frames]], window: int, name: str) -> CanData:
    """The graphs of named recordings, each split by time into 60 %, 20 % and 20 % of its windows."""
    names, parts, known = [], [], []
    for recording, frames in recordings:
        if len(frames) < FEWEST * window:
            raise DataError(
                f"recording {recording!r} has {len(frames):,} frames, {len(frames) // window} windows of {window}, "
                f"and it takes {FEWEST} to train, choose and report on: give a longer one"
            )
        windows = window_graphs(frames, window)
        trained = _sizes(len(windows.label))[0] * window
        known.append(np.unique(frames.identifier[:trained][~frames.injected[:trained]]))
        names.append(recording)
        parts.append(windows)
    identifiers = np.unique(np.concatenate(known))
    every = joined(parts, edge=1)
    sizes = np.array([len(part.label) for part in parts])
    recording_of = np.repeat(np.arange(len(parts)), sizes)
    attacks, attack = _attacks(names, recording_of, every.label)
    train, validation, test = _split(sizes)
    return CanData(
        identifiers=identifiers,
        ids=_index_in(identifiers, every.identifier),
        features=every.features,
        first=starts(every.nodes),
        edge=every.edge,
        edge_count=every.edge_count,
        first_edge=starts(every.edges),
        label=every.label,
        recording=recording_of.astype(np.int16),
        attack=attack,
        train=train,
        validation=validation,
        test=test,
        name=name,
        recordings=tuple(names),
        attacks=attacks,
    )


def _files(path: Path) -> list[Path]:
    """The file itself, or a folder's recordings by name."""
    wanted = f"give a recording ({', '.join(SUFFIXES)}), a folder of recordings, or 'synthetic'"
    if not path.exists():
        raise DataError(f"no file or folder {str(path)!r}: {wanted}")
    with reading(path):
        inside = sorted(path.iterdir()) if path.is_dir() else []
    kept = [file for file in inside if file.suffix.lower() in SUFFIXES]
    kept = [file for file in kept if not file.name.lower().startswith(NO_RECORDINGS)] if inside else [path]
    files = [file for file in kept if file.is_file()]
    if not files:
        raise DataError(f"no recording in {str(path)!r}: {wanted}")
    for one, other in itertools.pairwise(sorted(files, key=lambda file: file.stem)):
        if one.stem == other.stem:  # converted, it would count twice
            raise DataError(f"{path}: {one.name} and {other.name} are of one name: take one away, or rename it")
    return files


def _read(path: Path) -> Frames:
    return read_parquet(path) if path.suffix.lower() == ".parquet" else read_frames(path)


def _sizes(windows: int) -> tuple[int, int, int]:
    """The numbers of a recording's windows for training, validation and test."""
    held = max(1, round(HELD_OUT * windows))
    return windows - 2 * held, held, held


def _split(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """The graphs of each split, in order, for recordings with these numbers of windows."""
    part = np.concatenate([np.repeat(np.arange(3), _sizes(size)) for size in sizes.tolist()])
    return tuple(np.flatnonzero(part == number) for number in range(3))


def _index_in(identifiers: NDArray[np.int32], found: NDArray[np.int32]) -> NDArray[np.int32]:
    """Indices in the vocabulary, from 1; 0 for unknown IDs."""
    place = np.searchsorted(identifiers, found)
    known = np.append(identifiers, -1)[place] == found  # no ID is negative
    return np.where(known, place + 1, 0).astype(np.int32)


def _attacks(
    names: Sequence[str], recording: NDArray[np.int64], label: NDArray[np.int8]
) -> tuple[tuple[str, ...], NDArray[np.int16]]:
    """The kinds of attack, and the kind of each graph."""
    kind = [name.split("_")[0].lower() for name in names]
    found = sorted({kind[number] for number in recording[label > 0].tolist()})
    index = np.array([found.index(attack) + 1 if attack in found else 0 for attack in kind])
    return ("none", *found), np.where(label > 0, index[recording], 0).astype(np.int16)
