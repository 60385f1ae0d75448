"""What came out best: a workload's best configuration by its mean over seeds, and its best single trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tuner.records.attempts import CONFIG, Attempt
from tuner.records.row_queries import metric_columns
from tuner.records.seed_statistics import averages, summary
from tuner.reporting.page.configurations import values_text
from tuner.reporting.page.parts import command, facts, section
from tuner.reporting.seeds import has_seeds, interval_text, intervals
from tuner.reporting.study_view import StudyView
from tuner.trial import title


def best_section(study: StudyView, workload: str) -> str:
    """A workload's best trial or, with several seeds, its best configuration and below that its best single trial."""
    rows, metric = study.of_workload(workload), study.metrics[workload]
    several = has_seeds(rows)
    heading = f"Best {'configuration' if several else 'trial'}"
    heading += f" of {workload}" if len(study.metrics) > 1 else ""
    if not rows or rows[0].status != "completed" or rows[0].value(metric) is None:
        why = "No trial has completed yet." if len(study.rows) < study.total else "No trial completed."
        content = f'<p class="none">{why}</p>'
    elif several:
        content = _configuration(rows, metric) + _single(study, rows[0], metric)
    else:
        figures = {key: _number(rows[0], key) for key in metric_columns(rows[:1], metric)}
        content = _card(rows[0].name, figures, rows[:1]) + command("Again", study.again(rows[0]))
    return section(heading, f"best-{list(study.metrics).index(workload)}", content)


def _configuration(rows: Sequence[Attempt], metric: str) -> str:
    """The configuration that ``averages`` calls the best, and what can be said of the others."""
    found = averages(rows, metric)
    best = next(each for each in found if each.verdict == "best")
    own = [row for row in rows if row.name == best.name]
    figures = {f"mean {key}": interval_text(intervals(own, key)[best.name]) for key in metric_columns(own, metric)}
    about = f"Means of {len(best.values)} of {best.seeds} seeds"
    about += ", with their 95 % intervals." if len(best.values) > 1 else "."
    lines = [f"{line}." for line in summary(found).splitlines()]
    return _card(best.name, figures, own) + "".join(f'<p class="said">{escape(text)}</p>' for text in [about, *lines])


def _single(study: StudyView, row: Attempt, metric: str) -> str:
    name = title(row.workload, row.name, several=False, seed=row.seed)
    said = ", ".join(f"{key} {_number(row, key)}" for key in dict.fromkeys(metric_columns([row], metric)))
    text = f'<p class="single">Best single trial: <strong>{escape(name)}</strong>, {escape(said)}</p>'
    return text + command("Again", study.again(row))


def _card(name: str, figures: Mapping[str, str], rows: Sequence[Attempt]) -> str:
    """The name, the figures in large type, and the hyperparameters of these rows."""
    keys = dict.fromkeys(key for row in rows for key in row.config)
    config = [(key, values_text(rows, f"{CONFIG}{key}")) for key in keys]
    return (
        f'<div class="best"><div><p class="name">{escape(name)}</p>{facts(figures.items(), big=True)}</div>'
        f"{facts(config, kind='config')}</div>"
    )


def _number(row: Attempt, key: str) -> str:
    return f"{row.number(key):.4f}"
