"""CAN-bus recordings as graphs that all trials of a machine share, split by time."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.arrays import cached, file_key, joined, starts
from tuner.datasets.can_frames import Frames, in_order, read_frames, read_parquet
from tuner.datasets.faults import reading
from tuner.errors import DataError, InputError

FEATURES = (*(f"mean of byte {byte}" for byte in range(8)), "frames", "last position")
SUFFIXES = (".csv", ".txt", ".log", ".parquet")  # of the files that are read of a folder
NO_RECORDINGS = ("readme", "licen")  # what names of texts begin with that come along
VERSION = "2"  # of the cache: increase it when the built data change
HELD_OUT = 0.2  # the share of a recording's windows for validation, and the same for the test
FEWEST = 3  # the minimum number of windows of a recording
LARGEST_WINDOW = 100_000  # the maximum number of frames of a window
# The period of each ID in seconds, as in a recorded car.
PERIODS = (0.01,) * 14 + (0.02,) * 5 + (0.05,) * 2 + (0.1,) * 4 + (1.0,) * 2
JITTER = 0.0003  # seconds, the standard deviation of a frame's delay
BURSTS = 10  # the number of an attack's bursts in a recording; each split by time has some
ATTACKED = 0.4  # the share of the time with injected frames
GAPS = {"dos": 0.0005, "fuzzing": 0.001}  # seconds between injected frames
CONSTANT, COUNTER, SIGNAL, NOISE = range(4)  # the kinds of bytes


@dataclass(frozen=True, eq=False)
class Windows:
    """G graphs with N nodes and E edges in total. A graph's nodes are in the order of their IDs, numbered from 0."""

    identifier: NDArray[np.int32]  # (N,) the nodes' CAN IDs
    # (N, 10) ``FEATURES``: the means of a frame's 8 bytes / 255 (missing bytes are 0), the number of frames and the
    # position of the last one from 0, both divided by the window's length.
    features: NDArray[np.float32]
    nodes: NDArray[np.int64]  # (G,) the number of nodes of each graph
    edge: NDArray[np.int32]  # (2, E) from a frame's ID to the next one's; each pair once; loops are possible
    edge_count: NDArray[np.float32]  # (E,) how often each pair occurred
    edges: NDArray[np.int64]  # (G,) the number of edges of each graph
    label: NDArray[np.int8]  # (G,) 1 if a frame of the window was injected


def window_graphs(frames: Frames, window: int) -> Windows:
    """The graphs of a recording's windows of ``window`` frames, without overlap and without a last partial window."""
    graphs = len(frames) // window
    used = slice(0, graphs * window)
    graph, position = np.divmod(np.arange(graphs * window), window)
    # Sorting numbers made of graph and ID gives the final order of the nodes.
    node_of_all, node, frames_of = np.unique(
        (graph << 32) | frames.identifier[used], return_inverse=True, return_counts=True
    )
    nodes = np.bincount(node_of_all >> 32, minlength=graphs)
    last = np.zeros(len(node_of_all))
    last[node] = position  # the last frame of an ID wins
    data = frames.data[used]
    means = [np.bincount(node, data[:, byte], len(node_of_all)) / frames_of / 255 for byte in range(data.shape[1])]
    edge, edge_count, edges = _edges(node - starts(nodes)[graph], window)
    return Windows(
        identifier=(node_of_all & 0xFFFFFFFF).astype(np.int32),
        features=np.stack([*means, frames_of / window, last / window], axis=1).astype(np.float32),
        nodes=nodes,
        edge=edge,
        edge_count=edge_count,
        edges=edges,
        label=np.asarray(frames.injected[used].reshape(graphs, window).any(axis=1), dtype=np.int8),
    )


def _edges(node: NDArray[np.int64], window: int) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """Pairs of nodes that follow each other, their counts, and the number of pairs of each graph.

    ``node`` is each frame's node, numbered from 0 in its window.
    """
    rows = node.reshape(-1, window)
    pair = rows[:, :-1] * window + rows[:, 1:]
    graph = np.arange(len(rows))[:, None] * window**2
    pairs, count = np.unique(graph + pair, return_counts=True)
    of_graph, pair_of_graph = np.divmod(pairs, window**2)
    edge = np.stack(np.divmod(pair_of_graph, window)).astype(np.int32)
    return edge, count.astype(np.float32), np.bincount(of_graph, minlength=len(rows))


# eq=False: comparing arrays field by field has no single truth value.
@dataclass(frozen=True, eq=False)
class CanData:
    """G graphs of windows of CAN frames, with N nodes and E edges in total; one node for each ID of a window.

    A graph's nodes are in the order of their raw IDs. The vocabulary has the IDs of normal frames in training
    windows. Each unknown ID has its own node, with index 0.
    """

    identifiers: NDArray[np.int32]  # (V,) the vocabulary's CAN IDs, ascending: index k is ``identifiers[k - 1]``
    ids: NDArray[np.int32]  # (N,) each node's index in the vocabulary; 0 for an unknown ID
    features: NDArray[np.float32]  # (N, 10) as in ``Windows``
    first: NDArray[np.int64]  # (G + 1,) the start of each graph's nodes
    edge: NDArray[np.int32]  # (2, E) as in ``Windows``, by nodes that are numbered from 0 in each graph
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
        return build(synthetic_can().items(), window, "synthetic CAN traffic")
    path = Path(source).expanduser()
    files = _files(path)

    def read() -> CanData:
        name = path.resolve().name if path.is_dir() else path.stem
        return build(((file.stem, _read(file)) for file in files), window, name)

    return cached(CanData, file_key(path, files, VERSION, window), read)


def build(recordings: Iterable[tuple[str, Frames]], window: int, name: str) -> CanData:
    """The graphs of named recordings, each split by time into 60 %, 20 % and 20 % of its windows."""
    names, parts, vocabulary = [], [], []
    for recording, frames in recordings:
        if len(frames) < FEWEST * window:
            raise DataError(
                f"recording {recording!r} has {len(frames):,} frames, {len(frames) // window} windows of {window}, "
                f"and training, validation and test need {FEWEST}: give a longer one"
            )
        windows = window_graphs(frames, window)
        trained = _sizes(len(windows.label))[0] * window
        vocabulary.append(np.unique(frames.identifier[:trained][~frames.injected[:trained]]))
        names.append(recording)
        parts.append(windows)
    identifiers = np.unique(np.concatenate(vocabulary))
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
            raise DataError(f"{path}: {one.name} and {other.name} have the same name: remove or rename one")
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


def _index_in(identifiers: NDArray[np.int32], wanted: NDArray[np.int32]) -> NDArray[np.int32]:
    """Indices in the vocabulary, from 1; 0 for unknown IDs."""
    place = np.searchsorted(identifiers, wanted)
    in_vocabulary = np.append(identifiers, -1)[place] == wanted  # no ID is negative
    return np.where(in_vocabulary, place + 1, 0).astype(np.int32)


def _attacks(
    names: Sequence[str], recording: NDArray[np.int64], label: NDArray[np.int8]
) -> tuple[tuple[str, ...], NDArray[np.int16]]:
    """The kinds of attack, and the kind of each graph."""
    kind = [name.split("_")[0].lower() for name in names]
    attacks = sorted({kind[number] for number in recording[label > 0].tolist()})
    index = np.array([attacks.index(attack) + 1 if attack in attacks else 0 for attack in kind])
    return ("none", *attacks), np.where(label > 0, index[recording], 0).astype(np.int16)


@dataclass(frozen=True)
class Message:
    """The frames of an ID."""

    identifier: int
    period: float  # seconds between frames
    length: int  # the number of bytes of a frame
    kinds: NDArray[np.int64]  # (8,) the kind of each byte
    values: NDArray[np.int64]  # (8,) the initial value of each byte


def synthetic_can(frames: int = 25_000, *, seed: int = 0) -> dict[str, Frames]:
    """Three recordings of one car's traffic by name: no attack, denial of service, fuzzing.

    27 IDs are sent periodically with jitter. Their bytes are constants, counters, slow signals or noise. The first
    attack floods the bus with frames of ID 0 and zeros, the second sends random IDs and bytes, both in bursts.
    """
    if frames < 1:
        raise InputError(f"frames {frames}: must be at least 1")
    random = np.random.default_rng(seed)
    messages = _messages(random)
    recordings = {}
    for attack in ("attack_free", "dos", "fuzzing"):
        # Long enough without injected frames; further frames are cut off.
        seconds = 1.1 * frames / sum(1 / period for period in PERIODS)
        parts = [_sent(message, seconds, random) for message in messages]
        if attack in GAPS:
            rate = sum(map(len, parts)) / seconds
            seconds *= rate / (rate + ATTACKED / GAPS[attack])
            parts.append(_injected(attack, seconds, random))
        every = in_order(parts)
        recordings[f"{attack}_synthetic"] = every.take(slice(0, frames))
    return recordings


def _messages(random: np.random.Generator) -> list[Message]:
    identifiers = np.sort(random.choice(np.arange(1, 0x7FF), len(PERIODS), replace=False))
    return [
        Message(
            int(identifier),
            period,
            8 if random.random() < 0.9 else int(random.integers(2, 8)),
            random.choice(4, 8, p=(0.5, 0.1, 0.3, 0.1)),
            random.integers(0, 256, 8),
        )
        for identifier, period in zip(identifiers, random.permutation(PERIODS), strict=True)
    ]


def _sent(message: Message, seconds: float, random: np.random.Generator) -> Frames:
    """An ID's frames over this number of seconds."""
    count = int(seconds / message.period) + 1
    number = np.arange(count)
    time = (number + random.random()) * message.period + random.normal(0, JITTER, count)
    data = np.zeros((count, 8), dtype=np.uint8)
    for byte in range(message.length):
        start, kind = int(message.values[byte]), message.kinds[byte]
        if kind == NOISE:
            data[:, byte] = random.integers(0, 256, count)
        elif kind == SIGNAL:
            data[:, byte] = 127 + 60 * np.sin(time * (0.2 + byte / 8) + start) + random.normal(0, 2, count)
        else:
            data[:, byte] = (start + number * (kind == COUNTER)) % 256
    return Frames(time, np.full(count, message.identifier, dtype=np.int32), data, np.zeros(count, dtype=bool))


def _injected(attack: str, seconds: float, random: np.random.Generator) -> Frames:
    """An attack's frames, in bursts that are spread evenly over this number of seconds."""
    period = seconds / BURSTS
    burst = np.arange(0, ATTACKED * period, GAPS[attack])
    begins = (np.arange(BURSTS) + random.uniform(0, 1 - ATTACKED, BURSTS)) * period
    time = (begins[:, None] + burst).ravel() + random.normal(0, JITTER / 10, BURSTS * len(burst))
    count = len(time)
    # A denial of service sends frames with ID 0, which wins every arbitration.
    identifiers, values = (1, 1) if attack == "dos" else (0x800, 0x100)
    identifier, data = random.integers(0, identifiers, count), random.integers(0, values, (count, 8))
    return Frames(time, identifier.astype(np.int32), data.astype(np.uint8), np.ones(count, dtype=bool))
