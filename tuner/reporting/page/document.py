"""The page itself: figures, table and head put together; everything that comes from users is escaped here."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib import resources
from string import Template

from tuner.records.attempts import Attempt
from tuner.reporting.figures.attempt_bars import to_bars, without_pauses
from tuner.reporting.figures.chart import Chart, count_text
from tuner.reporting.figures.compared import compared
from tuner.reporting.figures.coordinates import parallel_coordinates
from tuner.reporting.figures.curves import learning_curves
from tuner.reporting.figures.effects import against_each
from tuner.reporting.figures.estimates import estimate_against_peak
from tuner.reporting.figures.style import COLOURS, DARK, FONT
from tuner.reporting.figures.timeline import timelines
from tuner.reporting.page.best import best_section
from tuner.reporting.page.configurations import configurations_table
from tuner.reporting.page.parts import command, facts, section, table_box
from tuner.reporting.page.table import trials_table
from tuner.reporting.seeds import has_seeds
from tuner.reporting.study_view import StudyView
from tuner.reporting.tables import duration
from tuner.trial import GB

STATUSES = ("completed", "pruned", "out_of_memory", "diverged", "failed", "interrupted")
REASONS = 8  # so many different reasons of failures are listed


def page_html(study: StudyView, *, live: str = "") -> str:
    """The whole page: one file that asks the network for nothing.

    Args:
        study: what it shows.
        live: for a page that asks its server for news, the version of the study that it shows; empty for a file.
    """
    from plotly.offline import get_plotlyjs

    # The table can be used before plotly has been read.
    scripts = [_static("vendor/sortable.min.js") + _static("table.js"), get_plotlyjs(), _static("page.js")]
    return Template(_static("page.html")).substitute(
        policy=escape(_policy(scripts, bool(live))),
        title=escape(f"{study.name} · tuner"),
        style=_style(),
        dark=json_block("dark", json.dumps(DARK)),
        main=main_html(study),
        table=scripts[0],
        plotly=scripts[1],
        script=scripts[2],
        live=escape(live),
    )


def page_start() -> str:
    """What every page begins with, and hardly anything else does."""
    return _static("page.html").partition("$")[0]


def main_html(study: StudyView) -> str:
    """What a page shows of a study, without styles and scripts: the part that changes while the study runs."""
    body = [_head(study)]
    body += [best_section(study, workload) for workload in study.metrics]
    body += [_configurations(study, workload, metric) for workload, metric in study.metrics.items()]
    body.append(_trials(study))
    for workload in study.metrics:
        body.append(_comparison(study, workload))
    memory = [*timelines(study), estimate_against_peak(study)]
    body.append(section("Time and memory", "memory", "".join(map(_figure, memory))))
    body.append(_foot(study))
    return f'<main id="main">{"".join(body)}</main>'


def json_block(name: str, text: str) -> str:
    """JSON in a page; no text in it can break out, as ``<`` is written as an escape."""
    escaped = text.replace("<", "\\u003c")
    return f'<script type="application/json" class="{escape(name)}">{escaped}</script>'


def _style() -> str:
    colours = "".join(f"--{name}: light-dark({light}, {dark}); " for name, (light, dark) in COLOURS.items())
    return f":root {{ {colours}}}\nbody {{ font-family: {FONT}; }}\n{_static('page.css')}"


def _figure(chart: Chart) -> str:
    """A chart's HTML, with its plotly figure as JSON; page.js shows it."""
    heading, caption = f"<h3>{escape(chart.title)}</h3>", f"<p>{escape(chart.caption)}</p>"
    if chart.plot is None:
        return f'<div class="figure empty">{heading}{caption}</div>'
    narrow = f"min-width:{chart.minimum_width}px;" if chart.minimum_width else ""
    size = f"{narrow}height:{chart.plot.layout.height}px"
    label = escape(f"{chart.title}: {chart.caption}")
    scroll = ' tabindex="0" role="group" aria-label="Plot, can be scrolled sideways"' if narrow else ""
    return (
        f'<figure class="figure">{heading}<figcaption>{caption}</figcaption><div class="scroll"{scroll}>'
        f'<div class="plot" role="img" aria-label="{label}" style="{size}"></div>'
        f"{json_block('drawn', chart.plot.to_json(validate=False))}</div></figure>"
    )


def _head(study: StudyView) -> str:
    about = study.study
    known = [("Trials", _counts(study)), *_times(study)]
    known += [
        (device.label, f"{device.name}, {budget / GB:.1f} GB for trials") for device, budget in study.devices()[:8]
    ]
    if data := about.get("data"):
        known.append(("Data", str(data)))
    return (
        f'<header><p class="kicker">tuner study</p><h1>{escape(study.name)}</h1>{_bar(study.rows, study.total)}'
        f"{facts(known)}{_running(study)}{''.join(f'<p>Note: {escape(note)}</p>' for note in study.notes)}"
        f"{command('Command', str(about.get('command', '')))}</header>"
    )


def _counts(study: StudyView) -> str:
    counts = Counter(str(row.status) for row in study.rows)
    parts = [f"{counts[status]} {status.replace('_', ' ')}" for status in STATUSES if counts[status]]
    waiting = study.total - len(study.rows)
    parts += [f"{waiting} not ended yet"] if waiting else []
    return (
        f"{study.total:,}, all {parts[0].split(' ', 1)[1]}"
        if len(parts) == 1 and not waiting
        else f"{study.total:,}: {', '.join(parts)}"
    )


def _times(study: StudyView) -> list[tuple[str, str]]:
    found = []
    try:
        started = datetime.fromisoformat(str(study.study.get("started", "")))
        found.append(("Started", f"{started.day} {started:%B %Y, %H:%M}"))
    except ValueError:
        pass
    if bars := to_bars(study.attempts):
        found.append(
            (
                "Took" if len(study.rows) == study.total else "So far",
                duration(max(bar.end for bar in without_pauses(bars)[0])),
            )
        )
    trained = sum(row.duration_s or 0 for row in study.attempts)
    found.append(("Training", f"{duration(trained)} over all attempts"))
    return found


def _bar(rows: Sequence[Attempt], total: int) -> str:
    """How many trials ended how, as a bar; the counts are in the text below it."""
    counts = Counter(str(row.status) for row in rows)
    shares = [(status, counts[status] / max(1, total)) for status in STATUSES if counts[status]]
    spans = "".join(f'<span class="{status}" style="width:{100 * share:.3f}%"></span>' for status, share in shares)
    return f'<div class="bar" aria-hidden="true">{spans}</div>'


def _running(study: StudyView) -> str:
    names = study.trial_names
    ended = {row.trial_id for row in study.rows if row.status != "interrupted"}
    lines = [(names.get(each, each), line["epoch"]) for each, line in study.running.items() if each not in ended]
    if not lines or len(study.rows) >= study.total:
        return ""
    shown = ", ".join(f"{name} (after epoch {epoch})" for name, epoch in lines[:12])
    more = f" and {len(lines) - 12} more" if len(lines) > 12 else ""
    return f'<p class="running">Running when last heard of: {escape(shown)}{more}.</p>'


def _configurations(study: StudyView, workload: str, metric: str) -> str:
    """The workload's configurations over their seeds; nothing where there is one seed."""
    rows = study.of_workload(workload)
    if not has_seeds(rows):
        return ""
    title = "Configurations" if len(study.metrics) == 1 else f"Configurations of {workload}"
    name = f"configurations-{list(study.metrics).index(workload)}"
    table = table_box(f"Table: {title}", configurations_table(rows, metric, f"{name}-table"))
    return section(title, name, table)


def _trials(study: StudyView) -> str:
    if not study.rows:
        return section("All trials", "all", '<p class="none">No trial has ended yet.</p>')
    counts = Counter(str(row.status) for row in study.rows)
    options = "".join(
        f'<option value="{escape(each)}">{escape(each)} ({counts[each]})</option>' for each in sorted(counts)
    )
    controls = (
        '<div class="controls"><label>Filter <input id="filter" type="search" autocomplete="off" spellcheck="false" '
        'placeholder="text in any column"></label><label>Status <select id="status"><option value="">any</option>'
        f'{options}</select></label><label class="check"><input id="every" type="checkbox"> show columns that are '
        'the same everywhere</label><p id="count" role="status"></p></div>'
    )
    table = table_box("Table of all trials", trials_table(study.rows, study.metrics))
    return section("All trials", "all", f"{controls}{table}{_reasons(study.rows)}")


def _reasons(rows: Sequence[Attempt]) -> str:
    """Why trials did not complete: each reason once."""
    reasons = Counter((str(row.status), str(row.error)) for row in rows if row.error)
    if not reasons:
        return ""
    items = "".join(
        f'<li><span class="status {escape(status)}">{escape(status)}</span> '
        f"{count_text(count, 'trial')}: {escape(error)}"
        for (status, error), count in reasons.most_common(REASONS)
    )
    more = f"<p>and {len(reasons) - REASONS} more reasons, in the column error</p>" if len(reasons) > REASONS else ""
    return f'<div class="reasons"><h3>What went wrong</h3><ul>{items}</ul>{more}</div>'


def _comparison(study: StudyView, workload: str) -> str:
    small = "".join(map(_figure, against_each(study, workload)))
    metric = compared(study.of_workload(workload), study.metrics[workload]).metric
    grid = f'<h3 class="grid-title">{escape(metric)} against each hyperparameter</h3><div class="grid">{small}</div>'
    whole, curves = parallel_coordinates(study, workload), learning_curves(study, workload)
    title = f"Comparison: {workload}" if len(study.metrics) > 1 else "Comparison"
    name = f"compared-{list(study.metrics).index(workload)}"
    return section(title, name, _figure(whole) + (grid if small else "") + _figure(curves))


def _foot(study: StudyView) -> str:
    versions = study.study.get("versions", {})
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"<footer><p>Made by tuner from attempts.jsonl and epochs.jsonl. {escape(listed)}</p></footer>"


def _policy(scripts: Sequence[str], live: bool) -> str:
    """The page's content security policy: only these very scripts run, and nothing is loaded from anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _static(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
