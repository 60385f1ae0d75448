"""CAN-bus recordings as graphs that all trials of a machine share, split by time."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.arrays import cached, file_key, joined, starts
from tuner.datasets.can_forms import NO_LABEL, LabelColumn, says_kind
from tuner.datasets.can_frames import KIND, LABELLED, LOGGED, NO_FLAGS, Frames, in_order, kinds_told, read
from tuner.datasets.texts import NO_TABLES, reading, unpacked
from tuner.errors import DataError, InputError, option

FEATURES = (*(f"mean of byte {byte}" for byte in range(8)), "frames", "last position")
SUFFIXES = (".csv", ".tsv", ".txt", ".log", ".parquet", *LOGGED)  # of the files that are read of a folder
NO_KINDS = ("attack", "attacks", "dataset")  # words of a file's name that say nothing of its kind of attack
VERSION = "5"  # of the cache: increase it when the built data change
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
    kind: NDArray[np.int16]  # (G,) the largest number in ``Frames.injected``; 0 without an attack


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
        kind=frames.injected[used].reshape(graphs, window).max(axis=1, initial=0).astype(np.int16),
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
    attacks: tuple[str, ...]  # "none" and the kinds of attack, see ``_kinds``
    notes: tuple[str, ...] = ()  # what was read of each recording, and what was left out

    def __getstate__(self) -> dict[str, object]:
        """Without notes: studies of earlier versions know their data by the pickle."""
        return {name: value for name, value in vars(self).items() if name != "notes"}

    def __len__(self) -> int:
        """Number of graphs."""
        return len(self.label)


def load_can(source: str, *, window: int = 100, label: str | None = None, normal: str | None = None) -> CanData:
    """CAN-bus graphs by name or path.

    ``source`` is ``synthetic`` (generated), a recording in a form that ``can_forms.py`` knows, in parquet or in one
    of ``LOGGED``, or a folder of recordings and folders. A graph has ``window`` frames. ``label`` is the column of
    tables that says which frames are attacks: all but those with the value ``normal``. Raises ``DataError`` with
    file, line and value if there is no file or one is invalid.
    """
    if not isinstance(window, int) or not 2 <= window <= LARGEST_WINDOW:
        raise InputError(f"window {window!r}: must be a whole number of frames from 2 to {LARGEST_WINDOW:,}")
    if normal is not None and label in (None, NO_LABEL):
        raise InputError(
            f"{option('normal', normal)} needs {option('label', 'COLUMN')}, whose value it is: give both"
        )
    if source == "synthetic":
        return build(synthetic_can().items(), window, "synthetic CAN traffic")
    path = Path(source).expanduser()
    files, others = _files(path)

    def load() -> CanData:
        told: dict[str, Counter[str]] = {name: Counter() for name in files}
        recordings = ((name, read(file, LabelColumn(label, normal), told[name])) for name, file in files.items())
        data = build(recordings, window, path.resolve().name if path.is_dir() else _stem(path), told)
        if label not in (None, NO_LABEL) and not any(one[LABELLED] for one in told.values()):
            raise DataError(
                f"{option('label', label)}: no file in {str(path)!r} has a column of this name: correct it"
            )
        return replace(data, notes=(*data.notes, *others))

    return cached(CanData, file_key(path, [*files.values()], VERSION, window, str((label, normal, others))), load)


def build(
    recordings: Iterable[tuple[str, Frames]], window: int, name: str, told: Mapping[str, Counter[str]] | None = None
) -> CanData:
    """The graphs of named recordings, each split by time into 60 %, 20 % and 20 % of its windows.

    ``told`` has what else there is to say of a recording.
    """
    names, parts, vocabulary, counts = list[str](), [], [], []
    for recording, frames in recordings:
        if len(frames) < FEWEST * window:
            raise DataError(
                f"recording {recording!r} has {len(frames):,} frames, {len(frames) // window} windows of {window}, "
                f"and training, validation and test need {FEWEST}: give a longer one"
            )
        windows = window_graphs(frames, window)
        trained = _sizes(len(windows.kind))[0] * window
        vocabulary.append(np.unique(frames.identifier[:trained][frames.injected[:trained] == 0]))
        names.append(recording)
        parts.append(windows)
        counts.append((len(frames), np.bincount(frames.injected.astype(np.int16), minlength=2)[1:]))
    identifiers = np.unique(np.concatenate(vocabulary))
    every = joined(parts, edge=1)
    sizes = np.array([len(part.kind) for part in parts])
    recording_of = np.repeat(np.arange(len(parts)), sizes)
    told = told or {}
    kinds = [_kinds(told.get(name, Counter()), own) for name, own in zip(names, kinds_of(names), strict=True)]
    kind_of = [np.array(["none", *own])[part.kind] for own, part in zip(kinds, parts, strict=True)]
    attacked = np.concatenate(kind_of)
    attacks = ("none", *sorted({*attacked[every.kind > 0].tolist()}))
    train, validation, test = _split(sizes)
    return CanData(
        identifiers=identifiers,
        ids=_index_in(identifiers, every.identifier),
        features=every.features,
        first=starts(every.nodes),
        edge=every.edge,
        edge_count=every.edge_count,
        first_edge=starts(every.edges),
        label=(every.kind > 0).astype(np.int8),
        recording=recording_of.astype(np.int16),
        attack=np.where(every.kind > 0, np.searchsorted(attacks[1:], attacked) + 1, 0).astype(np.int16),
        train=train,
        validation=validation,
        test=test,
        name=name,
        recordings=tuple(names),
        attacks=attacks,
        notes=tuple(
            _note(name, own, *count, told.get(name, Counter()))
            for name, own, count in zip(names, kinds, counts, strict=True)
        ),
    )


def _kinds(told: Counter[str], of_name: str) -> list[str]:
    """The kinds of attack of a recording, by the numbers in ``Frames.injected``: its flags, or else its name."""
    words = kinds_told(told)
    if len(words) > 1 or any(map(says_kind, words)):
        return [re.sub(r"\W+", "_", word) for word in words]
    return [of_name]


def _note(name: str, kinds: Sequence[str], frames: int, injected: NDArray[np.int64], told: Counter[str]) -> str:
    """What is said of a recording."""
    none = NO_FLAGS if told[NO_FLAGS] else "no attacks"
    each = [f"{count:,} {kind}" for kind, count in zip(kinds, injected.tolist(), strict=True) if count]
    several = ", ".join(each) if len(each) > 1 else kinds[0]
    attacks = f", {injected.sum():,} of them attacks ({several})" if each else f", {none}"
    others = [what if what.startswith("column") else f"{count:,} {what}" for what, count in told.items() if count]
    others = [text for text in others if not text.endswith((NO_FLAGS, LABELLED)) and KIND not in text]
    return "; ".join([f"{name}: {frames:,} frames{attacks}", *others])


def _files(path: Path) -> tuple[dict[str, Path], list[str]]:
    """The file itself, or the recordings of a folder and its folders, by name; and what is left out, in words."""
    wanted = f"give a recording ({', '.join(SUFFIXES)}), a folder of recordings, or 'synthetic'"
    if not path.exists():
        raise DataError(f"no file or folder {str(path)!r}: {wanted}")
    with reading(path):
        inside = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    shown = [file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    kept = [file for file in shown if unpacked(file).suffix in SUFFIXES]
    kept = [file for file in kept if not file.name.lower().startswith(NO_TABLES)]
    others = [f"left out, as it is no recording: {file.relative_to(path)}" for file in shown if file not in kept]
    files: dict[str, Path] = {}
    for file in [path] if path.is_file() else kept:
        name = str(file.relative_to(path.parent if file == path else path).with_name(_stem(file)))
        if name in files:  # converted, it would count twice
            raise DataError(f"{path}: {files[name].name} and {file.name} have the same name: remove or rename one")
        files[name] = file
    if not files:
        raise DataError(f"no recording in {str(path)!r}: {wanted}")
    return files, others


def _stem(file: Path) -> str:
    return file.name[: len(unpacked(file).stem)]


def kinds_of(names: Sequence[str]) -> list[str]:
    """The kinds of attack that recordings may hold, by their names.

    A kind is the name of the file without numbers, without the words ``NO_KINDS``, and without last words that all
    names have, such as that of a car: ``dos_sonata`` beside ``fuzzing_sonata`` holds ``dos``.
    """
    kinds = []
    for name in names:
        every = [word.rstrip("0123456789") for word in re.split(r"[\W_]+", Path(name).name.lower())]
        words = list(filter(None, every))
        kinds.append([word for word in words if word not in NO_KINDS] or words or [name.lower()])
    while min(map(len, kinds)) > 1 and len({words[-1] for words in kinds}) == 1 < len(kinds):
        kinds = [words[:-1] for words in kinds]
    return ["_".join(words) for words in kinds]


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
