"""Prints a study's plan before its trials run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tuner.errors import option
from tuner.reporting.console import line_width, print_text
from tuner.reporting.plan_text import estimates_text, monitoring_text, plan_text
from tuner.reporting.texts import count_text
from tuner.study.executors import processes_line
from tuner.study.live_search import infeasible_text
from tuner.study.prepare import Study
from tuner.trial import Status, title
from tuner.workloads.task import describe

if TYPE_CHECKING:
    from rich.console import Console

REMEDIES: dict[Status, str] = {
    "out_of_memory": f"{option('on_oom', 'grow')}, a larger {option('max_attempts')} or more memory runs them again",
    "failed": f"{option('max_failures', 1)} runs them again",
    "stalled": f"they were tried twice; a new study with a longer {option('trial_timeout')} runs them again",
}


def show_plan(console: Console, study: Study) -> None:
    """Prints the plan and a search's part in it; if nothing is left to run, how to run trials again."""
    data, batches = describe(study.tasks), study.sized.text
    bound = "in_process" if study.settings.in_process else "max_workers"
    lines = [plan_text(study.plan, study.requests, data, batches, study.seconds, bound)]
    lines += [*left_out(study), *filter(None, study.notes)]
    if study.requests and (how := processes_line(study.plan, study.tasks, study.settings)):
        lines.append(how)
    if study.left:
        name = study.settings.search_name or "Optuna"
        more = "more trials" if study.selected.is_endless else count_text(study.left, "more trial")
        lines.append(
            f"{'search':<10} {name}: {more} to be suggested as there is room, planned for as if they were like these"
        )
    if not study.requests:
        last = Counter({row.trial_id: row.status for row in study.attempts}.values())
        lines += [f"{last[status]} {status}: {remedy}" for status, remedy in REMEDIES.items() if last[status]]
    print_text(console, "\n".join(lines))


def left_out(study: Study) -> list[str]:
    """A line for each trial that fits no device or breaks a constraint."""
    several = len(study.tasks) > 1
    return [
        f"{'left out':<10} {title(request.trial.workload, request.trial.name, several=several)}: "
        f"{infeasible_text(request, study.limits, study.settings)}"
        for request in study.infeasible
    ]


def show_needs(console: Console, study: Study) -> None:
    """Prints each configuration's needs, which are the same for all seeds."""
    several = len(study.tasks) > 1
    needs = {
        title(request.trial.workload, request.trial.name, several=several): request.estimate
        for request in study.requests
    }
    if needs:
        print_text(console, estimates_text(list(needs.items()), line_width(console)))


def show_monitoring(console: Console, study: Study) -> None:
    """Prints the commands that show the devices' memory while trials run."""
    if study.requests and (watch := monitoring_text(study.plan)):
        print_text(console, watch)
