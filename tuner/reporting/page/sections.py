"""The content of a study's page as HTML. Each text is escaped where it is inserted."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from html import escape
from importlib.util import find_spec
from typing import cast, get_args

from tuner.objective import Objective
from tuner.records.attempts import CONFIG, Attempt
from tuner.records.epochs import histories
from tuner.records.recorded_study import RecordedStudy
from tuner.records.row_queries import metric_columns, varying
from tuner.records.seed_statistics import averages, has_seeds, some_names, summary
from tuner.records.study_record import OPTUNA_CALL
from tuner.reporting.figures import optuna_figures
from tuner.reporting.figures.chart import Chart
from tuner.reporting.figures.fronts import fronts, hypervolume
from tuner.reporting.figures.machine import estimate_against_peak, machine_load
from tuner.reporting.figures.optuna_study import drawn, subset
from tuner.reporting.figures.style import SCALE, SERIES, colour, new_plot
from tuner.reporting.figures.timeline import schedules, timeline, to_bars, without_pauses
from tuner.reporting.page.details import details_html
from tuner.reporting.page.parts import address, command, facts, figure, in_text, json_block, pair, section
from tuner.reporting.page.standing import standing
from tuner.reporting.page.tables import configurations_table, most_rows, trials_table, values_text
from tuner.reporting.result_tables import interval_text, intervals
from tuner.reporting.texts import MEMORY_VIEWER, count_text, duration, number_text
from tuner.trial import GB, Status, title

# The maximum numbers of reasons for failures, devices, and tight trials that are listed.
REASONS, DEVICES, TIGHT = 8, 8, 12
RUNNING = cast("Status", "running")  # in the page alone: what the status of an attempt is before it ends
KILLED = "the study's process ended before the trial: `tuner --resume` with the study's folder trains it again"
Again = Callable[[Attempt], str]


def main_html(study: RecordedStudy, again: Again = lambda _: "") -> str:
    """The part of the page that changes while the study runs, without styles and scripts.

    ``again`` returns the command that runs a row's trial again.
    """
    memory = [timeline(study), machine_load(study), estimate_against_peak(study)]
    listed = _listed(study)
    body = [
        _head(study),
        _controls(listed) if listed else "",
        *(_best(study, workload, again) for workload in study.objectives),
        *(_configurations(study, workload) for workload in study.objectives),
        _trials(study, listed),
        *(_comparison(study, workload) for workload in study.objectives),
        section("Time and memory", "memory", "".join(map(figure, memory)) + _snapshots(study)),
        _foot(study),
        details_html(study, listed, again),
    ]
    return f'<main id="main">{"".join(body)}</main>'


def inline_main(study: RecordedStudy, again: Again = lambda _: "") -> str:
    """What a notebook shows: the best trials, the table with its selection and panels, and with plotly the curves."""
    listed = _listed(study)
    bests = "".join(_best(study, workload, again) for workload in study.objectives)
    parts = _controls(listed) + bests + _trials(study, listed) + details_html(study, listed, again)
    trials = [drawn(study, workload) for workload in study.objectives if find_spec("plotly")]
    curves = "".join(figure(optuna_figures.learning_curves(each)) for each in trials)
    return f'<main id="main">{parts}{curves}</main>'


def _head(study: RecordedStudy) -> str:
    record = study.record
    pairs = [("Trials", _counts(study)), *_times(study)]
    if len(study.rows) < study.total and (last := [line.at for line in study.epochs[-1:]]):
        going = ", with trials still to end" * study.is_open
        pairs.append(("Last report", f"{datetime.fromtimestamp(last[0]):%H:%M:%S}{going}"))
    pairs += [
        (device.label, f"{device.name}, {number_text(budget / GB)} GB for trials")
        for device, budget in study.devices()[:DEVICES]
    ]
    if record.plan.workers:
        pairs.append(("At once", f"{record.plan.workers}, bounded by {record.plan.bound}"))
    if tight := record.plan.tight:
        why = "each has a whole device, and runs as the allocator gives back what it caches"
        pairs.append(("Tight", f"{some_names(tight, TIGHT)}: {why}"))
    compared_by = [
        f"{one.metric}, {one.direction}d" for objective in study.objectives.values() for one in objective.all
    ]
    pairs += [("Compared by", "; ".join(dict.fromkeys(compared_by))), ("Data", record.data or "")]
    shares = [(status, count / study.total) for status, count in _by_status(study)]
    spans = "".join(f'<span class="{status}" style="width:{100 * share:.3f}%"></span>' for status, share in shares)
    return (
        f'<header><p class="kicker">tuner study</p><h1>{escape(study.name)}</h1>'
        f'<div class="bar" aria-hidden="true">{spans}</div>{facts((key, text) for key, text in pairs if text)}'
        f"{''.join(f'<p>Note: {escape(note)}</p>' for note in study.notes)}</header>"
    )


def _counts(study: RecordedStudy) -> str:
    """How many trials run, or ended in which way."""
    counts = _by_status(study)
    parts = [f"{count} {status.replace('_', ' ')}" for status, count in counts]
    if waiting := study.total - sum(count for _, count in counts):
        parts.append(f"{waiting} not started")
    if len(parts) == 1:
        return f"{study.total:,}, all {parts[0].partition(' ')[2]}"
    return f"{study.total:,}: {', '.join(parts)}"


def _by_status(study: RecordedStudy) -> list[tuple[str, int]]:
    running = running_rows(study)
    again = {row.trial_id for row in running}
    counts = Counter(row.status for row in [*running, *(row for row in study.rows if row.trial_id not in again)])
    return [(status, counts[status]) for status in (*get_args(Status), RUNNING) if counts[status]]


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


def running_rows(study: RecordedStudy) -> list[Attempt]:
    """A row for each trial that runs, with its last report and what it holds of its device.

    If the study's process was killed, they were interrupted without a word in the journal.
    """
    ended = {row.trial_id for row in study.rows if row.status != "interrupted" or not study.is_open}
    rows = []
    for trial_id, line in study.running.items():
        if trial_id in study.planned and trial_id not in ended and len(study.rows) < study.total:
            configuration, seed = study.planned[trial_id]
            row = Attempt(
                trial_id=trial_id,
                workload=configuration.workload or next(iter(study.objectives)),
                name=configuration.name,
                seed=seed,
                status=RUNNING if study.is_open else "interrupted",
                error="" if study.is_open else KILLED,
                attempts=line.attempt,
                metrics={key: value for key, value in line.metrics.items() if value is not None},
                epochs=line.epoch,
                duration_s=0.0,
                device=line.device,
                estimated_bytes=line.limit_bytes or 0,
                limit_bytes=line.limit_bytes,
                peak_bytes=line.memory_bytes,
                config=configuration.values,
            )
            rows.append(row)
    return rows


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
        content += f'<p class="single">Its best trial: <strong>{escape(name)}</strong>, {escape(values)}</p>'
    else:
        caution = study.record.cautions.get(workload, "")
        content = _card(best.name, metrics, [best])
        curve = histories(study.epochs).get(best.trial_id, {})
        content += _findings(standing(rows, objective, _more_seeds(study), caution, curve))
    return section(heading, _id(study, "best", workload), content + command("Again", again(best)))


def _id(study: RecordedStudy, what: str, workload: str) -> str:
    """The id of a section about a workload."""
    return f"{what}-{list(study.objectives).index(workload)}"


def _more_seeds(study: RecordedStudy) -> str:
    """How to train with more seeds; empty where a search suggests configurations, and trains each with one only."""
    if study.record.seeds > 1:
        return f"The study trains each with {study.record.seeds} seeds, and has begun with the first."
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
    lines = [about, *(f"{line}." for line in summary(means_of_all).splitlines()), *_lucky(rows, seeds, objective)]
    return _card(best.name, means, seeds) + _findings(lines)


def _lucky(rows: Sequence[Attempt], best: Sequence[Attempt], objective: Objective) -> Iterable[str]:
    """A sentence if a trial of another configuration than the best has the best value."""
    first = min((row for row in rows if row.status == "completed"), key=lambda row: row.loss(objective))
    if first.name != best[0].name:
        name = title(first.workload, first.name, several=False, seed=first.seed)
        mean = interval_text(intervals(rows, objective.metric)[first.name])
        value = number_text(first.number(objective.metric))
        yield f"The best single value, {value}, is that of {name}, whose mean is {mean}: its seed may be lucky."


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


def _listed(study: RecordedStudy) -> list[Attempt]:
    """The rows of the table: trials that run, then those that ended, of very many only some."""
    each = most_rows(study.rows) // len(study.objectives)
    ended = [row for name in study.objectives for row in subset(study.of_workload(name), each, each // 2)]
    running = running_rows(study)
    again = {row.trial_id for row in running}
    return [*running, *(row for row in ended if row.trial_id not in again)]


def _controls(listed: Sequence[Attempt]) -> str:
    """The box that selects trials, everywhere on the page."""
    counts = Counter(row.status for row in listed)
    options = "".join(f'<option value="{status}">{status} ({n})</option>' for status, n in sorted(counts.items()))
    return (
        '<div class="controls" role="search"><label>Select trials <input id="filter" type="search" '
        'autocomplete="off" spellcheck="false" aria-describedby="fault" '
        'placeholder="lr&lt;0.01 and status=completed, or words">'
        f'</label><label>Status <select id="status"><option value="">any</option>{options}</select></label>'
        '<button type="button" id="clear" hidden>Clear</button><p id="count" role="status"></p>'
        '<p id="fault" role="alert"></p></div>'
    )


def _trials(study: RecordedStudy, listed: Sequence[Attempt]) -> str:
    if not listed:
        return section("All trials", "all", '<p class="none">No trial has ended yet.</p>')
    every = (
        '<label class="check"><input id="every" type="checkbox"> show columns that are the same everywhere</label>'
    )
    going = {row.trial_id for row in running_rows(study)}
    ended = sum(row.trial_id not in going for row in listed)
    fewer = f"{ended:,} of {len(study.rows):,} trials are listed: the best ones and others evenly spaced by rank."
    left_out = _findings([f"{fewer} results.csv has all."] if ended < len(study.rows) else [])
    wrong = [row for row in study.rows if row.error and row.status != "pruned"]
    pruned = [row for row in study.rows if row.error and row.status == "pruned"]
    reasons = _reasons("What went wrong", wrong) + _reasons("Stopped early", pruned)
    return section("All trials", "all", every + left_out + trials_table(listed, study.objectives) + reasons)


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
    objective, charts = study.objectives[workload], list[Chart]()
    heading = f"Comparison: {workload}" if len(study.objectives) > 1 else "Comparison"
    if objective.others:
        charts += [fronts(study, workload), hypervolume(study, workload)]
    parts = [_by_objective(study, workload, one) for one in objective.all]
    content = parts[0] if len(parts) == 1 else _choice(objective, parts)
    charts += filter(None, [schedules(study)])
    explorer = _explorer(workload, objective, study.of_workload(workload))
    content += "".join(map(figure, charts)) + explorer
    return section(heading, _id(study, "compared", workload), content)


def _by_objective(study: RecordedStudy, workload: str, one: Objective) -> str:
    """The figures of a workload that are drawn by one of its objectives."""
    trials = drawn(study, workload, one)
    over_time = [optuna_figures.history({study.name: trials}), optuna_figures.distribution({study.name: trials})]
    charts = [optuna_figures.slices(trials), optuna_figures.parallel_coordinates(trials)]
    content = pair(optuna_figures.what_matters(trials)) + "".join(map(figure, charts)) + pair(over_time)
    return content + figure(optuna_figures.learning_curves(trials))


def _choice(objective: Objective, parts: Sequence[str]) -> str:
    """Figures by each of several objectives, of which the page shows one at a time."""
    options = "".join(f"<option>{escape(one.metric)}</option>" for one in objective.all)
    shown = "".join(f'<div class="by"{" hidden" * (place > 0)}>{part}</div>' for place, part in enumerate(parts))
    return f'<p class="choices"><label>Drawn by <select class="objective">{options}</select></label></p>{shown}'


def _explorer(workload: str, objective: Objective, rows: Sequence[Attempt]) -> str:
    """A plot of any two columns, coloured by a third; plots.js fills it. Empty with fewer than two trials."""
    if len(rows) < 2:
        return ""
    first = next(iter(varying(rows)), "epochs")
    second = objective.all[-1].metric
    axes = (("Across", first), ("Up", second), ("Colour", objective.metric))
    selects = "".join(
        f'<label>{name} <select data-column="{escape(column)}"></select></label>' for name, column in axes
    )
    fill = '<label class="check"><input type="checkbox"> fill the area between points</label>'
    meta = {"scale": SCALE, "series": [colour(name) for name in SERIES]}
    plot = new_plot(380, dragmode=False, meta=meta, xaxis_fixedrange=True, yaxis_fixedrange=True)
    return (
        f'<figure class="figure explore" data-workload="{escape(workload)}" data-metric="{escape(objective.metric)}" '
        f'data-direction="{objective.direction}"><h3>Any two columns</h3><div class="choices">{selects}{fill}</div>'
        f'<p role="status"></p><div class="plot" role="img" aria-label="Scatter plot of the chosen columns" '
        f'style="height:380px"></div>{json_block("drawn", plot.to_json(validate=False))}</figure>'
    )


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
        command("Command", record.command)
        + facts([("Code", code), *record.versions.items()], kind="run")
        + changed
        + _arguments(record.used),
    )
    return f"{what}<footer><p>Made by tuner from attempts.jsonl, epochs.jsonl and machine.jsonl.</p></footer>"


def _arguments(used: Mapping[str, object]) -> str:
    """The values of all options that are set; empty if none is recorded."""
    pairs = [(name, in_text(value)) for name, value in used.items() if value not in (None, "", [], {}, False)]
    return (
        f"<details><summary>All {len(pairs)} options</summary>{facts(pairs, kind='run')}</details>" if pairs else ""
    )
