"""Runs a trial's own program in a thread that waits at each report until the study has taken it."""

import importlib
import math
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from tuner.errors import MissingMetric, WorkloadError, option, spelled
from tuner.machine.caps import limit_threads
from tuner.machine.first_use import load_early
from tuner.objective import Objective, mean
from tuner.training.endings import REPORTS, Diverged, Fit, Paused, Pruned, Stopped, phases
from tuner.training.process_state import put_back, seed_of, set_seeds
from tuner.training.program_checkpoints import ProgramCheckpoints, Progress, files_of
from tuner.training.program_thread import IDLE_SECONDS, program_thread
from tuner.training.ranks import joined
from tuner.trial import MOST_SEED, EpochReport, Placement, Question, Trial
from tuner.workloads.contract import calling, method_failure
from tuner.workloads.objectives import check_reported
from tuner.workloads.program import Function, Program
from tuner.workloads.session import ProgramPruned, State, TrialEnd, entered, is_comparable, never_finite, to_numbers
from tuner.workloads.task import TrainingTask

Asked = Callable[[], bool]


def run_program(
    program: Program,
    trial: Trial,
    data: object,
    objective: Objective,
    store: ProgramCheckpoints,
    *,
    place: Placement | None = None,
    stop_asked: Asked = lambda: False,
    prune_asked: Asked = lambda: False,
    own_process: bool = True,
    notes: list[str] | None = None,
) -> Generator[EpochReport | Question | Fit, None, None]:
    """Runs a trial's program; yields a report before it begins, then the program's reports, and at the end a ``Fit``.

    At the first report the process is idle, so its memory is not counted as the trial's. ``place`` says which rank
    this is: what another one than rank 0 reports is ignored, and so are its metrics. ``own_process`` says whether the
    program may still run in the end, as its time is over. ``notes`` gets a line if what it returned does not count.

    Raises ``Pruned``, ``Stopped`` if the study ends, ``Diverged`` if the metric was never finite, ``WorkloadError``
    if it reports nothing, and what the program raises.
    """
    progress = store.restore()
    epochs, limit, late = program.most_epochs or trial.epochs, program.most_seconds, False
    session = _Session(trial, objective, store, progress, place, program.takes_infinite, epochs)
    with phases() as enter:
        yield (begun := EpochReport(trial.trial_id, progress.epoch, epochs))
        for epoch, metrics in progress.reports:  # a study that was killed may not have written the last ones down
            yield EpochReport(trial.trial_id, epoch, epochs, metrics, again=True)
        if progress.reports and not begun.is_last:  # it may have ended before it was pruned or had paused
            if prune_asked():
                raise Pruned(progress.best)
            if trial.until and progress.epoch >= trial.until:
                store.pause()
                raise Paused(progress.reports[-1][1])
        if program.most_epochs and begun.is_last:  # its last report came before the study was killed
            session.skip()
        else:
            program_thread().start(partial(session.run, program, data, place.threads if place else 1))
        enter("training")
        deadline = None if limit is None else time.monotonic() + limit - store.earlier_seconds
        try:
            while (message := session.next(deadline if own_process else None)) is not None:
                yield message
                if isinstance(message, Question):
                    continue
                if deadline is not None and time.monotonic() >= deadline:
                    break
                if message.is_last:  # it has done all that it was to do, however late it is asked to end
                    if program.most_epochs:
                        break
                    session.go_on()
                    continue
                if prune_asked():
                    raise Pruned(progress.best)
                if trial.until and progress.epoch >= trial.until and (session.saved or store.is_empty):
                    store.pause()
                    raise Paused(message.metrics)
                if stop_asked():
                    raise Stopped(f"stopped after epoch {progress.epoch}")
                session.go_on()
        except _TimeOver:
            late = True
        finally:
            session.end(at_once=late)
        if place and place.rank:
            yield Fit({}, {}, left=not session.has_ended)
            return
        final = to_numbers(session.final) if session.final else {}
        final = final if objective.metric in final else {**progress.best, **final}
        if late and not progress.best:
            raise WorkloadError(f"{program.name} reported nothing in {limit:g} s: give a longer trial_time_limit")
        if not session.reports and final and objective.metric not in final:
            raise MissingMetric(f"{program.name} returned {', '.join(final)}, but not {objective.metric!r}")
        if not session.reports and objective.metric not in final:
            remedy = session.nothing or program.remedy(objective.metric)
            raise WorkloadError(f"{program.name} ended without a report: {remedy}")
        if not is_comparable(final.get(objective.metric), infinite=program.takes_infinite):
            raise Diverged(never_finite(objective), final)
        check_reported(objective, final, program.name)
        if notes is not None and session.returned and (fault := _mean_missed(objective, progress)):
            notes.append(fault)
        kept = store.best(progress)
        if isinstance(kept, Path):
            yield Fit(final, files=files_of(kept), left=not session.has_ended)
        else:
            yield Fit(final, kept or {}, unkept=store.best_fault, left=not session.has_ended)


def _mean_missed(objective: Objective, progress: Progress) -> str:
    """What to do if a program has returned the mean of its reports, as of folds, and a single one counts instead."""
    *folds, returned = [metrics[objective.metric] for _, metrics in progress.reports]
    if objective.last or len(folds) < 2 or not math.isclose(returned, mean(folds), rel_tol=1e-6):
        return ""
    best = progress.best[objective.metric]
    if not objective.better(best, returned):
        return ""
    counts = f"it returned the mean {returned:.6g} of its reports, and the best of them, {best:.6g}, counts"
    return spelled(f"returned mean: {counts}: give {option('score', 'last')}")


class _TimeOver(Exception):
    """The trial's time is over."""


class _Session:
    """The program's side of the thread, and the study's."""

    def __init__(
        self,
        trial: Trial,
        objective: Objective,
        store: ProgramCheckpoints,
        progress: Progress,
        place: Placement | None,
        infinite: bool,
        epochs: int,
    ) -> None:
        self._trial, self._epochs = trial, epochs
        self._place = place
        self._objective, self._infinite = objective, infinite
        self.metric = objective.metric
        self.trial_id, self.seed = trial.trial_id, trial.seed
        self._store = store
        self._progress = progress
        self._reports: SimpleQueue[EpochReport | Question | BaseException | None] = SimpleQueue()
        self._answers: SimpleQueue[bool] = SimpleQueue()  # whether to go on
        self._replies: SimpleQueue[object] = SimpleQueue()
        self._process = os.getpid()
        self._ending = False
        self._ended = threading.Event()
        self.reports, self.returned, self.nothing = 0, False, ""
        self._given: int | None = None  # the last report's epoch as the program counts
        self._numbers: Mapping[str, float] = {}  # its metrics
        self.saved = False  # whether the last report came with a checkpoint
        self.final: Mapping[str, float] | None = None

    def report(
        self, metrics: Mapping[str, object], epoch: int | None = None, checkpoint: State | str | None = None
    ) -> None:
        """See ``Session.report``."""
        self._check()
        if self._place and self._place.rank:
            self.reports += 1
            return
        numbers = to_numbers(metrics, self.metric)
        progress, metric = self._progress, self.metric
        # An epoch may be told twice, with different parts: Optuna's trial.report takes no checkpoint.
        again = epoch is not None and (epoch, numbers[metric]) == (self._given, self._numbers.get(metric))
        progress.epoch = progress.epoch if again else self._counted(epoch)
        numbers = {**(self._numbers if again else {}), **numbers}
        self._given, self._numbers = epoch, numbers
        most = max(REPORTS, self._objective.last)
        progress.reports = [*progress.reports[: -1 if again else None], (progress.epoch, numbers)][-most:]
        more = again and progress.best.get("best_epoch") == progress.epoch
        if self._objective.last:
            is_best, counted = True, self._objective.mean([metrics for _, metrics in progress.reports])
        else:
            than = progress.best.get(metric, self._objective.worst)
            better = more or self._objective.better(numbers[metric], than)
            is_best, counted = is_comparable(numbers[metric], infinite=self._infinite) and better, numbers
        if is_best:
            progress.best = {**counted, "best_epoch": progress.epoch}
        if is_best and not more:
            progress.best_checkpoint, self._store.best_fault = None, ""  # an earlier best is missed no more
        self.saved = checkpoint is not None
        if checkpoint is not None:
            self._store.save(checkpoint, progress, is_best=is_best)  # type: ignore[arg-type]
        self.reports += 1
        epochs = progress.epoch if self.returned else self._epochs
        self._reports.put(EpochReport(self.trial_id, progress.epoch, epochs, numbers))
        if not self._answers.get():
            raise TrialEnd

    def ask(self, question: object) -> object:
        """See ``Session.ask``."""
        self._check()
        self._reports.put(Question(self.trial_id, question))
        answer = self._replies.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def tell(self, content: object) -> None:
        """See ``Session.tell``."""
        self._check()
        self._reports.put(Question(self.trial_id, content, waits=False))

    def checkpoint(self) -> State | None:
        """See ``Session.checkpoint``."""
        return self._store.last()

    def folder(self) -> Path:
        """See ``Session.folder``."""
        if self._store.trial_folder is None:
            raise WorkloadError("the trial has no folder: this machine does not have the study's")
        self._store.trial_folder.mkdir(parents=True, exist_ok=True)
        return self._store.trial_folder

    def run(self, program: Program, data: object, threads: int) -> None:
        """Runs the program in this thread, and reports its end."""
        limit_threads(threads)  # here, as OpenMP counts them for each thread by itself
        error: BaseException | None = None
        _answering[self._trial.trial_id] = self._replies
        try:
            set_seeds(seed_of(self._trial))
            with (
                put_back(),
                entered(self),
                calling(program, program.name),
                joined(self._place, by_itself=program.own_process),
            ):
                self.final = program.run(self._trial.config, data, self)
        except ProgramPruned:
            error = Pruned(self._progress.best)
        except TrialEnd:
            pass
        except BaseException as raised:  # the study's thread raises it again
            error = raised
        _answering.pop(self._trial.trial_id, None)
        self._ended.set()
        self._reports.put(error)

    def next(self, deadline: float | None = None) -> EpochReport | Question | None:
        """The program's next report or question; None if it has ended.

        Raises what it has raised, and ``_TimeOver`` if there is none until the deadline, in monotonic seconds.
        """
        try:
            message = self._reports.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            raise _TimeOver from None
        if isinstance(message, SystemExit):
            if message.code in (None, 0):
                return None
            raise WorkloadError(f"the program ended with sys.exit({message.code!r})")
        if isinstance(message, StopIteration):  # which generators do not let pass
            raise WorkloadError(method_failure(message) or "StopIteration") from message
        if isinstance(message, Exception):
            raise message
        if isinstance(message, BaseException):
            raise WorkloadError(f"the program ended with {type(message).__name__}")
        return message

    def go_on(self) -> None:
        """Lets the program continue after a report."""
        self._answers.put(True)

    def skip(self) -> None:
        """Ends a program that need not begin."""
        self._ended.set()
        self._reports.put(None)

    @property
    def has_ended(self) -> bool:
        """Whether the program has."""
        return self._ended.is_set()

    def end(self, *, at_once: bool = False) -> None:
        """Ends a program that waits at a report, and waits until it has ended, unless that must be ``at_once``."""
        while not self.has_ended:
            self._ending = True
            self._answers.put(False)
            self._replies.put(TrialEnd())
            self._ended.wait(IDLE_SECONDS)
            if at_once:
                return

    def _check(self) -> None:
        """Raises ``TrialEnd`` if the trial ends, and ``WorkloadError`` in a forked process, which nobody hears."""
        if os.getpid() != self._process:
            raise WorkloadError(
                "tuner.report: this process was started by the trial: call it in the trial's own process"
            )
        if self._ending:
            raise TrialEnd

    def _counted(self, epoch: int | None) -> int:
        """A report's epoch, counted from 1: the program's own, or the number of its reports.

        Epochs of an attempt increase. Where a program's own do not, as in a second training or with several reports
        of an epoch, this one and those after it continue from the last.
        """
        progress = self._progress
        if epoch is None:
            return progress.epoch + 1
        if not hasattr(epoch, "__index__") or (epoch := operator.index(epoch)) < 0:
            raise WorkloadError(f"tuner.report: epoch is {epoch!r}: expected a whole number")
        if epoch == 0:
            progress.offset = 1
        if self.reports:
            progress.offset += max(0, progress.epoch + 1 - (epoch + progress.offset))
        if (counted := epoch + progress.offset) > MOST_SEED:
            raise WorkloadError(f"tuner.report: epoch is {epoch}: give at most {MOST_SEED - 1}")
        return counted


_answering: dict[str, SimpleQueue[object]] = {}  # the queues of running trials, by id


def deliver(trial_id: str, answer: object) -> None:
    """Gives a running trial the answer to its question; one that has ended needs none."""
    if replies := _answering.get(trial_id):
        replies.put(answer)


def warm_up_program(device: str, threads: int, tasks: Sequence[TrainingTask]) -> None:
    """Imports what the programs need and takes a step with torch, so that no trial's footprint has these."""
    names = {name for task in tasks if isinstance(task.workload, Program) for name in task.workload.imports}
    for name in sorted(names):
        with suppress(Exception):  # the trial will raise it again
            importlib.import_module(name)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    functions = [task.workload.function for task in tasks if isinstance(task.workload, Function)]
    program_thread().wait(partial(load_early, *functions))
    if "torch" in sys.modules or device != "cpu":
        from tuner.training.rehearsal import warm_up

        others = [task for task in tasks if not isinstance(task.workload, Program)]
        program_thread().wait(partial(warm_up, device, threads, others))
