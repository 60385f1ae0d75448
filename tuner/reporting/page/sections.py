"""The content of a study's page as HTML. Each text is escaped where it is inserted."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from html import escape
from typing import get_args

from tuner.objective import Objective
from tuner.records.attempts import CONFIG, Attempt
from tuner.records.recorded_study import RecordedStudy
from tuner.records.row_queries import metric_columns
from tuner.records.seed_statistics import averages, has_seeds, some_names, summary
from tuner.records.study_record import OPTUNA_CALL
from tuner.reporting.figures import optuna_figures
from tuner.reporting.figures.fronts import fronts, hypervolume
from tuner.reporting.figures.machine import estimate_against_peak, machine_load
from tuner.reporting.figures.optuna_study import drawn, subset
from tuner.reporting.figures.timeline import schedules, timeline, to_bars, without_pauses
from tuner.reporting.page.parts import address, command, facts, figure, pair, section
from tuner.reporting.page.tables import configurations_table, most_rows, trials_table, values_text
from tuner.reporting.result_tables import interval_text, intervals
from tuner.reporting.texts import MEMORY_VIEWER, count_text, duration, number_text
from tuner.trial import GB, Status, title

# The maximum numbers of reasons for failures, devices, and running or tight trials that are listed.
REASONS, DEVICES, RUNNING = 8, 8, 12
Again = Callable[[Attempt], str]


def main_html(study: RecordedStudy, again: Again = lambda _: "") -> str:
    """The part of the page that changes while the study runs, without styles and scripts.

    ``again`` returns the command that runs a row's trial again.
    """
    memory = [timeline(study), machine_load(study), estimate_against_peak(study)]
    body = [
        _head(study),
        *(_best(study, workload, again) for workload in study.objectives),
        *(_configurations(study, workload) for workload in study.objectives),
        _trials(study),
        *(_comparison(study, workload) for workload in study.objectives),
        section("Time and memory", "memory", "".join(map(figure, memory)) + _snapshots(study)),
        _foot(study),
    ]
    return f'<main id="main">{"".join(body)}</main>'


def _head(study: RecordedStudy) -> str:
    record = study.record
    pairs = [("Trials", _counts(study)), *_times(study)]
    pairs += [
        (device.label, f"{device.name}, {number_text(budget / GB)} GB for trials")
        for device, budget in study.devices()[:DEVICES]
    ]
    if record.plan.workers:
        pairs.append(("At once", f"{record.plan.workers}, bounded by {record.plan.bound}"))
    if tight := record.plan.tight:
        why = "each has a whole device, and runs as the allocator gives back what it caches"
        pairs.append(("Tight", f"{some_names(tight, RUNNING)}: {why}"))
    compared_by = [
        f"{one.metric}, {one.direction}d" for objective in study.objectives.values() for one in objective.all
    ]
    pairs += [("Compared by", "; ".join(dict.fromkeys(compared_by))), ("Data", record.data or "")]
    shares = [(status, count / study.total) for status, count in _by_status(study)]
    spans = "".join(f'<span class="{status}" style="width:{100 * share:.3f}%"></span>' for status, share in shares)
    return (
        f'<header><p class="kicker">tuner study</p><h1>{escape(study.name)}</h1>'
        f'<div class="bar" aria-hidden="true">{spans}</div>{facts((key, text) for key, text in pairs if text)}'
        f"{_running(study)}{''.join(f'<p>Note: {escape(note)}</p>' for note in study.notes)}</header>"
    )


def _counts(study: RecordedStudy) -> str:
    """How many trials ended in which way."""
    parts = [f"{count} {status.replace('_', ' ')}" for status, count in _by_status(study)]
    if waiting := study.total - len(study.rows):
        parts.append(f"{waiting} not ended yet")
    elif len(parts) == 1:
        return f"{study.total:,}, all {parts[0].partition(' ')[2]}"
    return f"{study.total:,}: {', '.join(parts)}"


def _by_status(study: RecordedStudy) -> list[tuple[str, int]]:
    counts = Counter(row.status for row in study.rows)
    return [(status, counts[status]) for status in get_args(Status) if counts[status]]


def _times(study: RecordedStudy) -> list[tuple[str, str]]:
    pairs = []
    with suppress(ValueError):
        started = datetime.fromisoformat(study.record.started)
        pairs.append(("Started", f"{started.day} {started:%B %Y, %H:%M}"))
    if bars := without_pauses(to_bars(study.attempts))[0]:
        took = max(bar.end for bar in bars)
        pairs.append(("Took" if len(study.rows) == study.total else "So far", duration(took)))
    trained = sum(row.own_seconds for row in study.attempts)
    return [*pairs, ("Training", f"{duration(trained)} over all attempts")]


def _running(study: RecordedStudy) -> str:
    ended = {row.trial_id for row in study.rows if row.status != "interrupted"}
    names = [
        f"{study.trial_names.get(trial_id, trial_id)} (after epoch {line.epoch})"
        for trial_id, line in study.running.items()
        if trial_id not in ended
    ]
    if not names or len(study.rows) >= study.total:
        return ""
    return f'<p class="running">Running at the last report: {escape(some_names(names, RUNNING))}.</p>'


def _best(study: RecordedStudy, workload: str, again: Again) -> str:
    """A workload's best trial; with several seeds its best configuration, then its best single trial."""
    rows, objective = study.of_workload(workload), study.objectives[workload]
    several = has_seeds(rows)
    heading = f"Best {'configuration' if several else 'trial'}{f' by {objective.metric}' if objective.others else ''}"
    heading += f" of {workload}" if len(study.objectives) > 1 else ""
    best = study.best(workload)
    if best is None:
        why = "No trial has completed yet." if len(study.rows) < study.total else "No trial completed."
        return section(heading, _id(study, "best", workload), f'<p class="none">{why}</p>')
    metrics = [(key, number_text(best.value(key))) for key in metric_columns([best], objective)]
    metrics += [("status", best.status)] * (best.status != "completed")
    if several and best.status == "completed":
        name = title(workload, best.name, several=False, seed=best.seed)
        values = ", ".join(f"{key} {value}" for key, value in metrics)
        content = _best_configuration(rows, objective)
        content += f'<p class="single">Best single trial: <strong>{escape(name)}</strong>, {escape(values)}</p>'
    else:
        caution = study.record.cautions.get(workload, "")
        content = _card(best.name, metrics, [best])
        content += _findings(standing(rows, objective, _more_seeds(study), caution))
    return section(heading, _id(study, "best", workload), content + command("Again", again(best)))


def _id(study: RecordedStudy, what: str, workload: str) -> str:
    """The id of a section about a workload."""
    return f"{what}-{list(study.objectives).index(workload)}"


def _more_seeds(study: RecordedStudy) -> str:
    """How to train with more seeds; empty where a search suggests configurations, and trains each with one only."""
    if study.record.command == OPTUNA_CALL or study.record.used.get("search") not in (None, "grid", "random"):
        return ""
    return "Resume the study with three seeds to train each configuration with two more."


def _best_configuration(rows: Sequence[Attempt], objective: Objective) -> str:
    """The best configuration according to ``averages``, and how the others compare."""
    means_of_all = averages(rows, objective)
    best = next(average for average in means_of_all if average.verdict == "best")
    seeds = [row for row in rows if row.name == best.name]
    means = [
        (f"mean {key}", interval_text(intervals(seeds, key)[best.name]))
        for key in metric_columns(seeds, Objective(objective.metric))
    ]
    about = f"Means of {len(best.values)} of {best.seeds} seeds"
    about += ", with their 95 % intervals." if len(best.values) > 1 else "."
    lines = [about, *(f"{line}." for line in summary(means_of_all).splitlines())]
    return _card(best.name, means, seeds) + _findings(lines)


def _findings(lines: Iterable[str]) -> str:
    return "".join(f'<p class="finding">{escape(line)}</p>' for line in lines)


def _card(name: str, metrics: Iterable[tuple[str, str]], rows: Sequence[Attempt]) -> str:
    """The name, the metrics in large type, and the hyperparameters of these rows."""
    keys = dict.fromkeys(key for row in rows for key in row.config)
    config = [(key, values_text(rows, f"{CONFIG}{key}")) for key in keys]
    return (
        f'<div class="best"><div><p class="name">{escape(name)}</p>{facts(metrics, big=True)}</div>'
        f"{facts(config, kind='config')}</div>"
    )


def _configurations(study: RecordedStudy, workload: str) -> str:
    """The workload's configurations over their seeds; empty if there is only one seed."""
    rows = study.of_workload(workload)
    if not has_seeds(rows):
        return ""
    heading = "Configurations" if len(study.objectives) == 1 else f"Configurations of {workload}"
    name = _id(study, "configurations", workload)
    table, fewer = configurations_table(rows, study.objectives[workload], f"{name}-table", heading)
    return section(heading, name, _findings(filter(None, [fewer])) + table)


def _trials(study: RecordedStudy) -> str:
    if not study.rows:
        return section("All trials", "all", '<p class="none">No trial has ended yet.</p>')
    each = most_rows(study.rows) // len(study.objectives)
    listed = [row for name in study.objectives for row in subset(study.of_workload(name), each, each // 2)]
    counts = Counter(row.status for row in listed)
    options = "".join(f'<option value="{status}">{status} ({n})</option>' for status, n in sorted(counts.items()))
    controls = (
        '<div class="controls"><label>Filter <input id="filter" type="search" autocomplete="off" spellcheck="false" '
        'placeholder="text in any column"></label><label>Status <select id="status"><option value="">any</option>'
        f'{options}</select></label><label class="check"><input id="every" type="checkbox"> show columns that are '
        'the same everywhere</label><p id="count" role="status"></p></div>'
    )
    fewer = (
        f"{len(listed):,} of {len(study.rows):,} trials are listed: the best ones and others evenly spaced by rank."
    )
    left_out = _findings([f"{fewer} results.csv has all."] if len(listed) < len(study.rows) else [])
    wrong = [row for row in study.rows if row.error and row.status != "pruned"]
    pruned = [row for row in study.rows if row.error and row.status == "pruned"]
    reasons = _reasons("What went wrong", wrong) + _reasons("Stopped early", pruned)
    return section("All trials", "all", controls + left_out + trials_table(listed, study.objectives) + reasons)


def _reasons(heading: str, rows: Sequence[Attempt]) -> str:
    """The reasons why these trials did not complete, with their counts; empty without trials."""
    reasons = Counter((row.status, row.error) for row in rows)
    if not reasons:
        return ""
    items = "".join(
        f'<li><span class="status {status}">{status}</span> {count_text(count, "trial")}: {escape(error)}'
        for (status, error), count in reasons.most_common(REASONS)
    )
    more = f"<p>and {len(reasons) - REASONS} more reasons, in the column error</p>" if len(reasons) > REASONS else ""
    return f'<div class="reasons"><h3>{heading}</h3><ul>{items}</ul>{more}</div>'


def _comparison(study: RecordedStudy, workload: str) -> str:
    trials, fronts_of = drawn(study, workload), []
    heading = f"Comparison: {workload}" if len(study.objectives) > 1 else "Comparison"
    if study.objectives[workload].others:
        fronts_of = [fronts(study, workload), hypervolume(study, workload)]
    over_time = [optuna_figures.history({study.name: trials}), optuna_figures.distribution({study.name: trials})]
    charts = [optuna_figures.slices(trials), optuna_figures.parallel_coordinates(trials), *fronts_of]
    curves = [optuna_figures.learning_curves(trials), *filter(None, [schedules(study)])]
    content = pair(optuna_figures.what_matters(trials)) + "".join(map(figure, charts)) + pair(over_time)
    return section(heading, _id(study, "compared", workload), content + "".join(map(figure, curves)))


def _snapshots(study: RecordedStudy) -> str:
    """Links to the traces in the study's folder, and how to look at them; empty without any."""
    if not study.snapshots:
        return ""
    links = ", ".join(f'<a href="{address(name)}" download>{escape(name)}</a>' for name in study.snapshots)
    return (
        f"<p>Where memory goes: {links}, in the study's folder. PyTorch's memory viewer draws such a trace: drop the "
        f'file on <a href="{MEMORY_VIEWER}">{MEMORY_VIEWER}</a>, which sends it nowhere.</p>'
    )


def _foot(study: RecordedStudy) -> str:
    record = study.record
    code = f"git {record.revision}" if record.revision else "no git revision was recorded"
    changed = "<p>+ after the revision: files were changed since that commit.</p>" if "+" in record.revision else ""
    what = section(
        "How it was run",
        "run",
        command("Command", record.command) + facts([("Code", code), *record.versions.items()], kind="run") + changed,
    )
    return f"{what}<footer><p>Made by tuner from attempts.jsonl, epochs.jsonl and machine.jsonl.</p></footer>"


FEW = 4  # with fewer trials, the second best is the median trial or half of it
NEAR = 0.05  # of the distance from the best to the median trial
MANY = 10  # trials, of which the best is likely to have been lucky


def standing(rows: Sequence[Attempt], objective: Objective, more_seeds: str, caution: str = "") -> list[str]:
    """The lead of a workload's best trial, and what remains uncertain about it; empty for a single trial.

    Args:
        rows: trials of one seed, the best first.
        objective: what they are compared by; nothing is said of a lead by several.
        more_seeds: a sentence that says how to train with more seeds; empty if the study takes no more.
        caution: why the workload's data may not tell the best trial.
    """
    metric = objective.metric
    cautions = [f"Caution: {caution}."] if caution else []
    done = [row for row in rows if row.status == "completed" and math.isfinite(row.number(metric))]
    if len(done) < 2 or objective.others:
        return cautions if len(done) > 1 else []
    losses = [row.loss(objective) for row in done]
    lead, spread = losses[1] - losses[0], statistics.median(losses) - losses[0]
    within = NEAR * spread
    near = sum(loss - losses[0] <= within for loss in losses[1:])
    lines = [_lead(done[1].name, lead, spread if len(done) >= FEW else 0.0, near, within)]
    lines.append(f"Each configuration was trained once, so part of this lead may be chance. {more_seeds}".rstrip())
    if len(done) >= MANY:
        name = metric.replace("val_", "test_", 1)
        test = done[0].value(name) if metric.startswith("val_") else None
        unbiased = "" if test is None else f"; its {name}, by which nothing was chosen, is {number_text(test)}"
        lines.append(f"As the best of {len(done)} by {metric}, it was probably lucky with it{unbiased}.")
    return lines + cautions


def _lead(second: str, lead: float, spread: float, near: int, within: float) -> str:
    """The lead over the second best and, unless ``spread`` is 0, the median trial; and how many trials are near."""
    if lead == 0:
        return f"It is as good as {second}."
    text = f"It is {number_text(lead)} better than {second}, the second best"
    text += f", and {number_text(spread)} better than the median trial" if spread else ""
    return text + (f". {count_text(near, 'trial')} are within {number_text(within)} of it." if near > 1 else ".")
