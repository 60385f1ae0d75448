"""Finds out from Ray, the worker's node and its kernel why a trial lost its worker, and what becomes of it."""

import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from tuner.errors import ANSI, lines_of
from tuner.execution.nodes import NodeWatch, ObjectRef, WorkerHandle, on_node, oom_kills, post_mortem
from tuner.execution.pool import WorkerPool
from tuner.machine.caps import OUT_OF_MEMORY, OUT_OF_RAM, near_cap
from tuner.machine.processes import end_tree, exit_text
from tuner.trial import GB, Began, Device, EpochReport, Lost, Outcome, Placement, ShortOf, Status

# Part of the memory monitor's error, which has its own class, but may also be quoted in other errors.
MONITOR = "due to the node running low on memory"
EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")
MEMORY_ERRORS = ("MemoryError", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
PID = re.compile(r"^\s*pid: (\d+)", re.MULTILINE)
EXIT_CODE = re.compile(r"\bexit code (\d+)")
# Ray needs 15 s to notice that a node is dead, and only says "unavailable" until then.
INVESTIGATION_SECONDS = 60
KILLS_SECONDS = 30
END_SECONDS = 10  # for processes on other nodes to end


@dataclass
class RunningTrial:
    """A trial in a worker."""

    placement: Placement
    pool: WorkerPool
    worker: WorkerHandle
    fresh: bool  # whether this is the worker's first trial
    started: float  # by the monotonic clock
    began: Began | None = None
    report: EpochReport | None = None
    alone: bool = False  # whether the trial has a process of its own

    def end(self, own_node: str) -> None:
        """Kills its worker."""
        end_processes([self], own_node)
        self.pool.end(self.worker)

    def stalled(self, error: str) -> Outcome:
        """The outcome of a trial that was ended for reporting nothing, with its last report's peak."""
        peak = self.report.memory_bytes if self.report else None
        return replace(self.lost("stalled", "", error), peak_bytes=peak)

    def lost(
        self,
        status: Status,
        lost: Lost,
        error: str,
        *,
        text: str = "",
        peak_bytes: int | None = None,
        short_of: ShortOf = "",
    ) -> Outcome:
        """The outcome of a trial whose worker cannot report any more. ``peak_bytes`` is its peak in RAM."""
        on_gpu = self.placement.device.kind == "cuda"
        if status == "failed" and self.report is None and not (self.fresh or self.alone):
            lost = lost or "worker"  # an earlier trial may have broken it: once more in a new one
        peaks = [peak_bytes, self.report.host_peak_bytes if self.report else None]
        return replace(
            lost_outcome(self.placement, self.report, self.started, status, error),
            traceback=text,
            lost=lost,
            peak_bytes=None if on_gpu else peak_bytes,
            host_peak_bytes=max(filter(None, peaks), default=None) if on_gpu else None,
            short_of=short_of,
        )


def end_processes(runs: Iterable[RunningTrial], own_node: str) -> None:
    """Kills the trials' processes with all their descendants.

    On other nodes Ray's tasks do that, for which it waits: once a worker is gone, its descendants are not known.
    """
    tasks = []
    for run in runs:
        if run.began is None:
            continue
        process, node = (run.began.pid, run.began.created, run.began.leads), run.pool.node_id
        if node == own_node:
            end_tree(*process)
        else:
            tasks.append(on_node(end_tree, node).remote(*process))
    if tasks:
        import ray

        ray.wait(tasks, num_returns=len(tasks), timeout=END_SECONDS)


@dataclass
class _Investigation:
    run: RunningTrial
    error: Exception
    started: float
    ping: bool = False
    how: str = ""  # the exit code or signal of its worker


class WorkerFailures:
    """The trials that lost their workers, until the reason is known."""

    def __init__(self, watch: NodeWatch, *, caps: bool = True) -> None:
        """Knows of this node."""
        import ray

        self._ray = ray
        self._watch = watch
        self._caps = caps
        self._open: dict[ObjectRef, _Investigation] = {}
        self._kills: dict[str, int] = {watch.own_node: oom_kills()}

    def watch(self, nodes: Collection[str]) -> None:
        """Reads the counts of OOM kills on these nodes."""
        counts = {node: on_node(oom_kills, node).remote() for node in nodes if node not in self._kills}
        for node, reference in counts.items():
            with suppress(self._ray.exceptions.RayError):
                self._kills[node] = self._ray.get(reference, timeout=KILLS_SECONDS)

    @property
    def references(self) -> list[ObjectRef]:
        """The next answer of each investigation."""
        return list(self._open)

    def investigate(self, run: RunningTrial, error: Exception) -> Outcome | None:
        """The outcome of a trial that lost its worker with this error; None if it is not known yet."""
        return self._next_step(_Investigation(run, error, time.monotonic()))

    def answered(self, reference: ObjectRef) -> Outcome | None:
        """The outcome of the trial that this answer is about; None if it is not known yet."""
        case = self._open.pop(reference)
        if not case.ping:
            return self._close(case, self._kernel_killed(case, reference))
        try:
            self._ray.get(reference, timeout=KILLS_SECONDS)
        except self._ray.exceptions.RayError as error:
            case.error = error
            return self._next_step(case)
        return self._close(case, False)  # the worker runs, but the trial's reports are lost

    def overdue(self) -> Iterator[Outcome]:
        """The outcomes of trials whose investigations take too long."""
        for reference, case in list(self._open.items()):
            if time.monotonic() - case.started > INVESTIGATION_SECONDS:
                del self._open[reference]
                yield self._close(case, False)

    def drop_node(self, node_id: str) -> list[RunningTrial]:
        """Ends the investigations on a dead node and returns their trials."""
        gone = [reference for reference, case in self._open.items() if case.run.pool.node_id == node_id]
        return [self._open.pop(reference).run for reference in gone]

    def _next_step(self, case: _Investigation) -> Outcome | None:
        """Ends an investigation if the reason is clear, else asks the next question."""
        error, run = case.error, case.run
        node = run.pool.node_id
        unknown = (self._ray.exceptions.ActorUnavailableError, self._ray.exceptions.GetTimeoutError)
        if killed_by_monitor(error) or raised_in_worker(error):
            return self._close(case, False)
        case.ping = isinstance(error, unknown) or node in self._watch.died(now=True)
        if case.ping:
            self._open[run.worker.ping.remote()] = case
        elif node == self._watch.own_node:
            return self._close(case, self._kernel_killed(case))
        else:
            self._open[on_node(post_mortem, node).remote(pid_of(error))] = case
        return None

    def _close(self, case: _Investigation, kernel_killed: bool) -> Outcome:
        run, error = case.run, case.error
        run.end(self._watch.own_node)  # it may still run and hold its share
        full = self._caps and at_cap(run.placement, run.report)
        status, lost, reason = classify_loss(error, kernel_killed=kernel_killed, at_cap=full, how=case.how)
        short_of: ShortOf = "RAM" if status == "out_of_memory" and ran_out_of_ram(run.placement.device, error) else ""
        peak = monitored_peak(error, run.worker) or (run.report.memory_bytes if full and run.report else None)
        return run.lost(status, lost, reason, text=plain_text(error), peak_bytes=peak, short_of=short_of)

    def _kernel_killed(self, case: _Investigation, reference: ObjectRef | None = None) -> bool:
        """Whether the node's kernel has killed a process that no case explains yet; notes how the worker ended."""
        node, pid = case.run.pool.node_id, pid_of(case.error)
        try:
            verdict = post_mortem(pid) if reference is None else self._ray.get(reference, timeout=KILLS_SECONDS)
        except self._ray.exceptions.RayError:
            return False
        count, case.how = verdict
        before = self._kills.setdefault(node, count)
        self._kills[node] = min(count, before + 1)
        return count > before


def lost_outcome(
    placement: Placement, report: EpochReport | None, started: float, status: Status, error: str
) -> Outcome:
    """The outcome of a trial whose process cannot report any more, after its last report.

    ``started`` is by the monotonic clock.
    """
    return Outcome(
        placement.trial,
        status,
        placement,
        epochs=report.epoch if report else 0,
        seconds=time.monotonic() - started,
        error=error,
        phase="training" if report else "start",
        reusable=False,
    )


def at_cap(placement: Placement, report: EpochReport | None) -> bool:
    """Whether a trial's last reported peak in RAM was almost its whole share."""
    peak = report.memory_bytes if report else None
    return placement.device.kind == "cpu" and near_cap(peak, placement.limit_bytes)


def plain_text(error: Exception) -> str:
    """An error's text without colours."""
    return ANSI.sub("", str(error))


def exception_line(text: str) -> str:
    """The last line that begins with an exception's name, as torch's errors have several lines; or the last line."""
    lines = lines_of(text)
    return next((line for line in reversed(lines) if EXCEPTION.match(line)), lines[-1])


def killed_by_monitor(error: Exception) -> bool:
    """Whether Ray's memory monitor has killed the worker."""
    import ray

    return isinstance(error, ray.exceptions.OutOfMemoryError) or MONITOR in str(error)


def raised_in_worker(error: Exception) -> bool:
    """Whether an exception was raised in the worker or its construction, so that it did not just die."""
    import ray

    if isinstance(error, ray.exceptions.RayActorError):
        return bool(error.actor_init_failed)
    raised = (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError)
    return isinstance(error, raised) or not isinstance(error, ray.exceptions.RayError)


def pid_of(error: Exception) -> int | None:
    """The process id of the actor that died; None if the error does not say."""
    match = PID.search(plain_text(error))
    return int(match[1]) if match else None


def monitored_peak(error: Exception, worker: WorkerHandle) -> int | None:
    """The bytes that the worker had according to Ray's memory monitor; None if the error does not say."""
    actor_id = worker._actor_id.hex()  # type: ignore[attr-defined]
    used = re.search(rf"Actor\({actor_id}\).*?actual memory used=([\d.]+)GB", plain_text(error))
    return int(float(used[1]) * GB) if used else None


def ran_out_of_ram(device: Device, error: Exception) -> bool:
    """Whether a worker on a GPU that ended out of memory was short of its host's RAM.

    Unless its own exception names the GPU's memory, it was killed for lack of RAM.
    """
    last = exception_line(plain_text(error))
    of_gpu = raised_in_worker(error) and not (last.startswith("MemoryError") or any(s in last for s in OUT_OF_RAM))
    return device.kind == "cuda" and not of_gpu


def classify_loss(
    error: Exception, *, kernel_killed: bool, at_cap: bool = False, how: str = ""
) -> tuple[Status, Lost, str]:
    """The status of a trial whose worker ended with this error, what was lost, and the reason in one line.

    ``kernel_killed`` says whether the node's kernel has killed a process because memory ran out, ``at_cap`` whether
    the trial last reported a peak at its cap, and ``how`` how the worker ended, if that is known.
    """
    import ray

    text = plain_text(error)
    first = lines_of(text)[0]
    if killed_by_monitor(error):
        used = first.rpartition("low on memory. ")[2]
        return "out_of_memory", "worker", f"the worker was killed by Ray's memory monitor: {used}"
    if raised_in_worker(error):
        last = exception_line(text)
        memory = last.startswith(MEMORY_ERRORS) or any(sign in last for sign in OUT_OF_MEMORY)
        return "out_of_memory" if memory else "failed", "", f"the worker was lost: {last}"
    if code := EXIT_CODE.search(text):
        how = how or f"its process {exit_text(int(code[1]))}"
    if kernel_killed:
        return "out_of_memory", "worker", "the worker was lost: the kernel killed it, as memory ran out"
    if at_cap and isinstance(error, ray.exceptions.ActorDiedError):  # libraries crash where an allocation fails
        return "out_of_memory", "worker", f"the worker was lost at its trial's share of memory: {how or first}"
    return "failed", "worker", f"the worker was lost: {how or first}"
