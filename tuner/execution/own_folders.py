"""Trials on nodes that do not share the study's folder: there each worker has a folder of its own in its place.

A trial's files are sent to it before the trial begins, and come back before its outcome; checkpoints also meanwhile.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.errors import joined, one_line, option, spelled
from tuner.execution.nodes import ObjectRef, on_node
from tuner.execution.sent_files import Code, Incoming, Piece, files_in, messages, pieces
from tuner.execution.stop_requests import StopRequests
from tuner.execution.worker import WORKER, TrialOptions, WorkerEvent
from tuner.machine.private_folder import private_folder, usable_bases
from tuner.machine.processes import shorten
from tuner.machine.safe_files import PARTIAL, remove
from tuner.trial import GB, EpochReport, Outcome, Placement, Trial
from tuner.workloads.session import LOGS, TRIALS

TRIAL_BYTES = GB  # the most that comes back of a trial's own folder
LONGEST_PATH, END_SECONDS = 4096, 10


@dataclass(frozen=True)
class Elsewhere:
    """The folder of a trial's files on its node; it comes before other events. ``lacks`` is what was not sent."""

    folder: str
    lacks: str
    own: bool  # whether the study's folder is not there; else code alone is in it


def checkpoints_of(trial: Trial, *, with_parent: bool = False) -> list[str]:
    """The names that a trial's checkpoints may have, also the one with which it pauses or begins."""
    names = [trial.trial_id, trial.pause, trial.parent if with_parent else ""]
    return [name + suffix for name in names if name for suffix in ("", ".pt")]


class NodeFolder:
    """A worker's own folder for its trials' files and the user's code, as far as its node does not have those."""

    def __init__(self, options: TrialOptions) -> None:
        """Finds out what the node has. The worker then is in the first folder with code, if there is any."""
        self._stack, self._lacks = ExitStack(), list[str]()
        atexit.register(self._stack.close)
        self.options, folder = options, options.checkpoints
        self._own = folder is not None and not shared_mark(folder, options.launch.study).exists()
        self._path: Path | None = None
        self._worker_bytes = 0  # of what was sent of the worker's log
        if self._own or not all(code.is_here for code in options.code):
            self._path = self._stack.enter_context(private_folder(usable_bases(LONGEST_PATH)[0]))
        places = [Path(code.root) if code.is_here else self._received(code) for code in options.code]
        found = [str(place / one) for place, code in zip(places, options.code, strict=True) for one in code.searched]
        sys.path += [one for one in found if one not in sys.path]
        if found:
            os.chdir(found[0])
        if folder is not None and self._own and self._path:
            self._name, own = folder.name, self._path / folder.name
            own.mkdir()
            StopRequests(own).reset()
            self.options = replace(options, checkpoints=own)
            self._incoming = Incoming(self._path, own)

    def _received(self, code: Code) -> Path:
        """The folder with what was sent of one with code."""
        assert self._path is not None
        tree, incoming = f"code{self.options.code.index(code)}", Incoming(self._path, self._path)
        for piece in _got(code.content):
            incoming.take(replace(piece, tree=tree), [tree])
        self._lacks += filter(None, [code.lacking])
        return self._path / tree

    def run(
        self, placement: Placement, given: Sequence[ObjectRef], events: Iterator[list[WorkerEvent]]
    ) -> Iterator[Sequence[WorkerEvent | Piece | Elsewhere]]:
        """The events of a trial with its files. ``given`` are those with which it begins, which the study has."""
        if self._path is not None:
            yield [Elsewhere(str(self._path), "; ".join(self._lacks), own=self._own)]
        if self._path is None or not self._own:
            yield from events
            return
        trial, log, kept, folder = placement.trial, f"{LOGS}/{placement.log}.log", list[str](), list[str]()
        if not placement.rank:  # others write no checkpoints
            kept, folder = [f"{self._name}/{one}" for one in checkpoints_of(trial)], [f"{TRIALS}/{trial.trial_id}"]
        for tree in (*kept, *folder, log):
            remove(self._path / tree)
        for piece in _got(given):
            self._incoming.take(piece, [piece.tree])  # they are the study's
        due = time.monotonic() + self.options.checkpoint_seconds
        for message in events:
            last = message[-1]
            if isinstance(last, Outcome):
                shorten(self.options.log(placement.log))
                yield from self._worker_log(placement)
                ended = last.status == "completed"
                faults = yield from self._sent([log, *folder, *([] if ended else kept)])
                message[-1] = replace(last, error=joined(last.error, *faults))
            elif isinstance(last, EpochReport) and time.monotonic() >= due:
                yield from self._sent([log, *kept])
                due = time.monotonic() + self.options.checkpoint_seconds
            yield message

    def _worker_log(self, placement: Placement) -> Iterator[list[Piece]]:
        """What this worker has printed between trials since it was last sent."""
        with suppress(OSError):
            log = self.options.log(WORKER)
            shorten(log)
            if log and (size := log.stat().st_size) != self._worker_bytes:
                self._worker_bytes = size
                for message in messages(pieces(log.parent, log.name)):
                    yield [replace(piece, tree=worker_log(placement)) for piece in message]

    def _sent(self, trees: Iterable[str]) -> Generator[list[Piece], None, list[str]]:
        """Yields the trees that there are; returns why some cannot come back."""
        assert self._path is not None
        faults = []
        for tree in trees:
            try:
                size = sum((self._path / tree / name).lstat().st_size for name in files_in(self._path / tree))
                if size > TRIAL_BYTES and tree.startswith(TRIALS):
                    why = f"{size / GB:.1f} GB, more than {TRIAL_BYTES // GB} GB"
                    remedy = spelled(f"have the nodes share {option('output')}")
                    faults.append(f"{tree} did not come back: {why}: {remedy}")
                else:
                    yield from messages(pieces(self._path, tree))
            except OSError as error:  # as where a checkpoint was replaced meanwhile: the next one will come
                faults.append(f"{tree} did not come back: {one_line(error)}")
        return faults


def worker_log(placement: Placement) -> str:
    """Where the study has what a worker had printed between trials when one ended."""
    return f"{LOGS}/{placement.log}.{WORKER}.log"


def _got(references: Iterable[ObjectRef]) -> Iterator[Piece]:
    import ray

    for reference in references:
        yield from ray.get(reference)


def shared_mark(checkpoints: Path, study: str) -> Path:
    """The file by which a node sees that it shares the folder: under a new name, as a missing one may be cached.

    A study that was killed leaves it, and removes it when it is resumed, as all that is partial.
    """
    return checkpoints / f"shared-{study}{PARTIAL}"


class StudyFiles(StopRequests):
    """The study's side: its folder, and what is known of the folders on nodes, to which requests go as well."""

    def __init__(self, options: TrialOptions, own_node: str) -> None:
        """Marks the study's folder. ``own_node`` is the id of the node that has it."""
        super().__init__(options.checkpoints)
        self._checkpoints = options.checkpoints
        self._sharing = {own_node}  # the ids of nodes
        self._folders: dict[str, set[str]] = defaultdict(set)  # on nodes
        self._running: dict[tuple[str, int], tuple[str, str]] = {}  # nodes and folders, by trial and rank
        self._said = {""}
        if self._checkpoints:
            self._incoming = Incoming(self._checkpoints.parent, self._checkpoints)
            shared_mark(self._checkpoints, options.launch.study).touch()

    def begin(self, placement: Placement, node: str) -> list[ObjectRef]:
        """What a trial begins with, in Ray's store, for a node that may not share the folder."""
        self._running.pop((placement.trial.trial_id, placement.rank), None)
        if self._checkpoints is None or node in self._sharing:
            return []
        import ray

        trees = self._trees(placement, checkpoints_of(placement.trial, with_parent=True))
        return [ObjectRef(ray.put(one)) for tree in trees for one in messages(pieces(self._checkpoints.parent, tree))]

    def _trees(self, placement: Placement, checkpoints: Sequence[str]) -> list[str]:
        assert self._checkpoints
        names = [f"{self._checkpoints.name}/{name}" for name in checkpoints]
        return [*names, f"{TRIALS}/{placement.trial.trial_id}", f"{LOGS}/{placement.log}.log"]

    def began(self, placement: Placement, node: str) -> None:
        """A trial has begun, and it would have said before that its files are elsewhere."""
        if (placement.trial.trial_id, placement.rank) not in self._running:
            self._sharing.add(node)

    def hear(self, event: Piece | Elsewhere, placement: Placement, node: str) -> str:
        """Takes what a trial sends; returns a text for the user if there is something new to say."""
        trial, text = placement.trial, ""
        if isinstance(event, Elsewhere):
            self._folders[node].add(event.folder)
            if event.own:
                self._running[trial.trial_id, placement.rank] = node, event.folder
                back = f"checkpoints, logs and trials' folders of up to {TRIAL_BYTES // GB} GB come back"
                text = f"{placement.device.label} does not share {option('output')}: {back}"
            lacks = event.lacks and f"{placement.device.label} does not get {event.lacks}"
            text = "; ".join(filter(None, (text, lacks)))
        elif self._checkpoints:
            try:
                own = self._trees(placement, checkpoints_of(trial))
                self._incoming.take(event, [*own, worker_log(placement)])
            except OSError as error:
                text = f"{trial.name}: {event.tree} did not come back: {one_line(error)}"
        if text in self._said:
            return ""
        self._said.add(text)
        return text

    def stop_all(self) -> None:
        """See ``StopRequests``."""
        super().stop_all()
        self._ask(None)

    def prune(self, trial_id: str) -> None:
        """See ``StopRequests``."""
        super().prune(trial_id)
        self._ask(trial_id)

    def _ask(self, trial_id: str | None) -> None:
        for (its, _), (node, folder) in self._running.items():
            if self._checkpoints and trial_id in (None, its):
                on_node(_ask, node).remote(f"{folder}/{self._checkpoints.name}", trial_id)

    def close(self, *, reachable: bool) -> None:
        """Removes the mark, and the folders on nodes."""
        import ray

        if self._checkpoints:
            for path in self._checkpoints.glob(f"*{PARTIAL}"):
                with suppress(OSError):
                    remove(path)
        tasks = [on_node(_end, node).remote(sorted(all_)) for node, all_ in self._folders.items() if reachable]
        if tasks:
            ray.wait(tasks, num_returns=len(tasks), timeout=END_SECONDS)


def _ask(folder: str, trial_id: str | None) -> None:
    requests = StopRequests(Path(folder))
    requests.stop_all() if trial_id is None else requests.prune(trial_id)


def _end(folders: Sequence[str]) -> None:
    for folder in folders:
        remove(Path(folder))
