"""What became of a trial whose worker is gone: asked of Ray, of the worker's node and of its kernel."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tuner.execution import ray_errors as losses
from tuner.execution.nodes import NodeWatch, on_node, oom_kills
from tuner.execution.pool import Pool
from tuner.trial import EpochReport, Lost, Outcome, Placement, Status

# So long is asked; Ray itself takes 15 s to notice that a node is dead, and until then only says "unavailable".
QUESTION_SECONDS = 60
KILLS_SECONDS = 30


@dataclass
class Run:
    """A trial in a worker.

    Attributes:
        placement: what runs, and where.
        pool: of its device.
        worker: the actor.
        fresh: it is the worker's first trial.
        began: by the monotonic clock.
        taken: the worker has begun with it.
        report: the last one.
    """

    placement: Placement
    pool: Pool
    worker: Any
    fresh: bool
    began: float
    taken: bool = False
    report: EpochReport | None = None

    def lost(
        self, status: Status, lost: Lost, error: str, *, text: str = "", peak_bytes: int | None = None
    ) -> Outcome:
        """How it ended, as its worker can tell no more."""
        return Outcome(
            trial=self.placement.trial,
            status=status,
            placement=self.placement,
            epochs=self.report.epoch if self.report else 0,
            seconds=time.monotonic() - self.began,
            peak_bytes=peak_bytes,
            error=error,
            traceback=text,
            phase="training" if self.report else "start",
            lost=lost,
            reusable=False,
        )


@dataclass
class _Question:
    run: Run
    error: Exception
    asked: float
    ping: bool = False


class Inquests:
    """Runs whose workers are gone, until it is known why. A node that died is found by the one who asks."""

    def __init__(self, watch: NodeWatch, nodes: Collection[str]) -> None:
        """Notes what the nodes' kernels have killed so far.

        Args:
            watch: knows which nodes have died.
            nodes: where workers run.
        """
        import ray

        self._ray = ray
        self._watch = watch
        self._questions: dict[Any, _Question] = {}
        self._kills: dict[str, int] = {watch.own_node: oom_kills()}
        asked = {node: on_node(oom_kills, node).remote() for node in nodes if node != watch.own_node}
        told, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=KILLS_SECONDS) if asked else ([], [])
        for node, reference in asked.items():
            if reference in told:
                self._kernel_killed(node, reference)

    @property
    def references(self) -> list[Any]:
        """What to wait for: an answer to each question."""
        return list(self._questions)

    def ask(self, run: Run, error: Exception) -> Outcome | None:
        """How a run has ended, by the error with which its worker was lost; None if that is still to be answered."""
        return self._decide(_Question(run, error, time.monotonic()))

    def answer(self, reference: Any) -> Outcome | None:
        """How a run has ended, now that a question is answered; None if another follows."""
        question = self._questions.pop(reference)
        if not question.ping:
            return self._close(question, self._kernel_killed(question.run.pool.node_id, reference))
        try:
            self._ray.get(reference, timeout=KILLS_SECONDS)
        except self._ray.exceptions.RayError as error:
            question.error = error
            return self._decide(question)
        return self._close(question, False)  # it lives, but what its trial says is lost

    def overdue(self) -> list[Outcome]:
        """How the runs have ended of which nothing more will be known."""
        found = []
        for reference, question in list(self._questions.items()):
            if time.monotonic() - question.asked > QUESTION_SECONDS:
                del self._questions[reference]
                found.append(self._close(question, False))
        return found

    def on_node(self, node_id: str) -> list[Run]:
        """Takes out the runs of a node that is dead: nothing more need be asked."""
        found = [(each, question.run) for each, question in self._questions.items()]
        gone = [(each, run) for each, run in found if run.pool.node_id == node_id]
        for reference, _ in gone:
            del self._questions[reference]
        return [run for _, run in gone]

    def _decide(self, question: _Question) -> Outcome | None:
        """Closes what is clear, and asks the next question of what is not."""
        error, run = question.error, question.run
        node = run.pool.node_id
        unknown = (self._ray.exceptions.ActorUnavailableError, self._ray.exceptions.GetTimeoutError)
        if losses.killed_by_monitor(error) or losses.raised(error):
            return self._close(question, False)
        question.ping = isinstance(error, unknown) or node in self._watch.died(now=True)
        if question.ping:
            self._questions[run.worker.ping.remote()] = question
        elif node == self._watch.own_node:
            return self._close(question, self._kernel_killed(node))
        else:
            self._questions[on_node(oom_kills, node).remote()] = question
        return None

    def _close(self, question: _Question, kernel_killed: bool) -> Outcome:
        run, error = question.run, question.error
        run.pool.end(run.worker)  # it may live on after an error of its own, and would keep its share
        status, lost, reason = losses.verdict(error, kernel_killed=kernel_killed)
        peak = losses.monitored_peak(error, run.worker)
        return run.lost(status, lost, reason, text=losses.plain(error), peak_bytes=peak)

    def _kernel_killed(self, node: str, reference: Any = None) -> bool:
        """Whether a node's kernel has killed one more process than has been accounted for."""
        try:
            count = oom_kills() if reference is None else self._ray.get(reference, timeout=KILLS_SECONDS)
        except self._ray.exceptions.RayError:
            return False
        before = self._kills.setdefault(node, count)
        self._kills[node] = min(count, before + 1)
        return bool(count > before)
