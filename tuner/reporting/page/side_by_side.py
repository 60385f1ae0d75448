"""The content of the page that compares several studies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from tuner.objective import Objective
from tuner.records.attempts import CONFIG
from tuner.records.recorded_study import RecordedStudy
from tuner.records.row_queries import varying
from tuner.reporting.figures.optuna_figures import distribution, history
from tuner.reporting.figures.optuna_study import drawn
from tuner.reporting.page.parts import address, figure, in_text, section
from tuner.reporting.page.tables import values_text
from tuner.reporting.texts import counted, duration, number_text


def side_by_side_html(named: Mapping[str, RecordedStudy], links: Sequence[str]) -> str:
    """The whole content of studies by their names.

    ``links`` are relative paths to the studies' own pages, empty where there is none.
    """
    notes = [f"{name}: {note}" for name, study in named.items() for note in study.notes]
    body = [
        f'<header><p class="kicker">tuner studies side by side</p><h1>{escape(" · ".join(named))}</h1>'
        f"{''.join(f'<p>Note: {escape(note)}</p>' for note in notes)}</header>",
        section("At a glance", "all", _table("At a glance", _glance(named, links), list(named))),
        *(
            _workload(named, *common, f"common-{number}")
            for number, common in enumerate(_common(list(named.values())))
        ),
        section("What differs", "differs", _table("What differs", _differences(named), list(named))),
    ]
    return f'<main id="main">{"".join(body)}</main>'


def _common(studies: Sequence[RecordedStudy]) -> list[tuple[str, Objective]]:
    """The workloads that at least two studies have, with what they compare them by."""
    counts = Counter((workload, objective) for study in studies for workload, objective in study.objectives.items())
    return [key for key, count in counts.items() if count > 1]


def _glance(named: Mapping[str, RecordedStudy], links: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The rows of the first table: a head, and the HTML of a cell for each study."""
    studies = list(named.values())
    pages = [f'<a href="{address(link)}">its page</a>' if link else "not written" for link in links]
    statuses = [counted(row.status.replace("_", " ") for row in study.rows) for study in studies]
    trials = [f"{study.total:,}: {counts}" for study, counts in zip(studies, statuses, strict=True)]
    rows = [("report", pages), ("trials", list(map(escape, trials)))]
    for workload in dict.fromkeys(name for study in studies for name in study.objectives):
        cells = [_best(study, workload) for study in studies]
        rows.append((f"best of {workload}", cells))
    training = [duration(sum(row.own_seconds for row in study.attempts)) for study in studies]
    rows.append(("training, all attempts", training))
    rows.append(("started", [escape(study.record.started) for study in studies]))
    return [*rows, ("command", [f"<code>{escape(study.record.command)}</code>" for study in studies])]


def _best(study: RecordedStudy, workload: str) -> str:
    """A study's best trial of a workload: its metric, its name and the hyperparameters that vary."""
    rows = study.of_workload(workload)
    best = study.best(workload) if workload in study.objectives else None
    if best is None:
        return "no trial has reported its metric"
    metric = study.objectives[workload].metric
    tried = ", ".join(f"{key.removeprefix(CONFIG)} {values_text([best], key)}" for key in varying(rows))
    status = "" if best.status == "completed" else f" ({best.status})"
    value = f"<strong>{escape(metric)} {number_text(best.value(metric))}</strong>{status}"
    return f"{value}<br>{escape(best.name)}{f'<br>{escape(tried)}' if tried else ''}"


def _workload(named: Mapping[str, RecordedStudy], workload: str, objective: Objective, name: str) -> str:
    """The plots of a workload with the studies that compare it by this; ``name`` is the heading's id."""
    studies = {name: study for name, study in named.items() if study.objectives.get(workload) == objective}
    trials = {name: drawn(replace(study, name=name), workload) for name, study in studies.items()}
    prints = {study.record.fingerprints.get(workload) for study in studies.values()}
    why = "it is not known whether the data are the same" if None in prints else "the data, or their split, differ"
    warning = f'<p class="finding">Compare with care: {why}.</p>' if len(prints) > 1 or None in prints else ""
    heading = f"{workload} by {objective.metric}, {objective.direction}d"
    return section(heading, name, warning + figure(history(trials)) + figure(distribution(trials)))


def _differences(named: Mapping[str, RecordedStudy]) -> list[tuple[str, list[str]]]:
    """The settings, versions and other facts that are not the same in all studies."""
    facts = [_facts(study) for study in named.values()]
    keys = dict.fromkeys(key for of_study in facts for key in of_study)
    rows = [(key, [of_study.get(key, "–") for of_study in facts]) for key in keys]
    return [(key, list(map(escape, texts))) for key, texts in rows if len(set(texts)) > 1]


def _facts(study: RecordedStudy) -> dict[str, str]:
    record = study.record
    values: dict[str, object] = {"data": record.data or "", "code revision": record.revision}
    values |= {f"version of {name}": version for name, version in record.versions.items()}
    values["devices"] = ", ".join(f"{device.label} {device.name}" for device, _ in study.devices())
    values |= record.used
    return {key: in_text(value) for key, value in values.items()}


def _table(label: str, rows: Sequence[tuple[str, Sequence[str]]], names: Sequence[str]) -> str:
    """A table with a column for each study; the cells are HTML."""
    if not rows:
        return '<p class="none">No recorded value differs.</p>'
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    lines = "".join(
        f'<tr><th scope="row">{escape(head)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for head, cells in rows
    )
    return (
        f'<div class="scroll table whole" tabindex="0" role="region" aria-label="{escape(label)}">'
        f'<table class="facing"><thead><tr><td></td>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
    )
