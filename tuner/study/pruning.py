"""Decides which running trials end early, by what they report to pruners and to the search."""

from collections.abc import Mapping
from copy import deepcopy

from tuner.decisions.constraints import ESTIMATED, excesses, known_figures
from tuner.decisions.events import Concluded, Decision, Dropped, Ended, Event, Planned, PruneAsked, Reported
from tuner.decisions.state import State
from tuner.objective import Objective
from tuner.search.optuna_names import FIFO, PBT, make_pruner
from tuner.search.searchers import Searcher
from tuner.search.searchers import State as Ending
from tuner.spec.settings import Settings
from tuner.trial import GB, Status, Trial

ENDINGS: Mapping[Status, Ending] = {
    "completed": "completed",
    "pruned": "pruned",
    "diverged": "unfit",
    "too_large": "unfit",
    "infeasible": "unfit",
    "out_of_memory": "unfit",
}
REFUSED = "refused"  # the id of values that were suggested earlier and could not be used


class Pruning:
    """Tells a study's judges what trials report: the search, and a pruner for each workload.

    Trials of different workloads are not compared. If a sampler of Optuna searches, the pruner is that of its study.
    """

    def __init__(
        self, objectives: Mapping[str, Objective], settings: Settings, searcher: Searcher | None = None
    ) -> None:
        """Begins with no trials."""
        self._objectives = objectives
        self._constraints = settings.limited_by
        self._searcher = searcher
        self._judges: dict[str, list[Searcher]] = {workload: [] for workload in objectives}
        self._unworthy: dict[str, int] = {}  # the epochs after which trials are to end, by id
        prunes = settings.scheduler not in (FIFO, PBT) and not (searcher and searcher.prunes)
        for workload, objective in objectives.items():
            self._judges[workload] += [] if searcher is None else [searcher]
            self._judges[workload] += [_pruner(settings, objective)] if prunes else []

    def hear(self, state: State, event: Event) -> None:
        """Tells the judges of trials, of their reports and of their ends."""
        if isinstance(event, Planned):
            for values in () if event.suggested else event.refused:
                for judge in filter(None, [self._searcher]):
                    judge.recall(REFUSED, values)
                    judge.tell(REFUSED, "unfit")
            for request in event.requests:
                for judge in self._judges[request.trial.workload]:
                    if not (event.suggested and judge is self._searcher):
                        judge.recall(request.trial.trial_id, request.trial.config)
        elif isinstance(event, Reported):
            self._reported(state, event)
        elif isinstance(event, Ended):
            if event.result.status == "too_large":  # the earlier process told so, and it may run by now
                self._tell(state, event.trial, "unfit", {})
        elif isinstance(event, Concluded):
            ended = event.ended
            ending, size = ENDINGS.get(ended.result.status, "failed"), ended.estimated_bytes
            self._tell(state, ended.trial, ending, ended.metrics, size)
        elif isinstance(event, Dropped):
            self._tell(state, event.outcome.trial, "failed" if event.outcome.status == "failed" else "unfit", {})

    def decide(self, state: State, now: float) -> Decision | None:
        """The next running trial to ask to end. A new attempt must have come as far as the judged one."""
        for trial_id, epoch in self._unworthy.items():
            if (run := state.running.get(trial_id)) and not run.prune_asked and (run.epoch or 0) >= epoch:
                return PruneAsked(trial_id)
        return None

    def _reported(self, state: State, event: Reported) -> None:
        """Tells the judges a reported objective. No trial is stopped after its last epoch."""
        report = event.report
        if report.is_last:
            self._unworthy.pop(report.trial_id, None)
        workload = state.requests[report.trial_id].trial.workload
        metric, others = self._objectives[workload].metric, self._objectives[workload].others
        if others or report.epoch == 0 or metric not in report.metrics or report.trial_id in state.ended:
            return
        value = report.metrics[metric]
        stops = [judge.report(report.trial_id, report.epoch, value) for judge in self._judges[workload]]
        if any(stops) and not report.is_last:
            self._unworthy.setdefault(report.trial_id, report.epoch)

    def _tell(
        self,
        state: State,
        trial: Trial,
        ending: Ending,
        metrics: Mapping[str, float | None],
        estimated_bytes: int = 0,
    ) -> None:
        self._unworthy.pop(trial.trial_id, None)
        excess: list[float] = []
        if self._constraints:
            figures = known_figures(state.requests[trial.trial_id].estimate)
            if ESTIMATED in figures and estimated_bytes:  # as it was when it began; later ones may be corrected
                figures[ESTIMATED] = estimated_bytes / GB
            excess = excesses(self._constraints, {**figures, **metrics})
        values = [metrics.get(one.metric) for one in self._objectives[trial.workload].all]
        for judge in self._judges[trial.workload]:
            judge.tell(trial.trial_id, ending, *values, excess=excess)


def _pruner(settings: Settings, objective: Objective) -> Searcher:
    """An Optuna study that only prunes."""
    from tuner.search.optuna_trials import OptunaTrials, new_study

    pruner = deepcopy(make_pruner(settings.scheduler, settings.scheduler_options))  # some keep what one study had
    return OptunaTrials(new_study(None, pruner, [objective.direction]))
