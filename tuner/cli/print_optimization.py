"""The output of ``tuner optimize``."""

from __future__ import annotations

from difflib import unified_diff
from typing import TYPE_CHECKING

from tuner.reporting.columns import TextColumn, table_lines
from tuner.sizing.choices import USERS_BOUND
from tuner.spec.spelling import in_terminal
from tuner.trial import GB

if TYPE_CHECKING:
    from tuner.api.optimize import Optimization
    from tuner.sizing.config_edits import FileEdit


def optimization_text(found: Optimization, dry_run: bool) -> str:
    """The device, a row for each stage or configuration, the reasons, and the changes of files."""
    lines = [_target_line(found), found.source, "", *_table(found), ""]
    lines += [f"- {text}" for text in found.notes]
    return "\n".join([*lines, *_files(found, dry_run)]).rstrip()


def _target_line(found: Optimization) -> str:
    device, goal = found.device, found.goal
    return (
        f"{device.name}: {device.total_bytes / GB:.2f} GB, of which a step may take {goal.limit_bytes / GB:.2f} GB "
        f"(safety margin {goal.safety_margin:g})"
    )


def _table(found: Optimization) -> list[str]:
    listed, total = found.chosen, found.device.total_bytes
    variables = list(dict.fromkeys(name for chosen in listed for name in chosen.variables))
    measured = any(chosen.measured_bytes is not None for chosen in listed)
    stopped_by = [_bound(chosen.stopped_by) for chosen in listed]
    columns = [
        TextColumn("name", [chosen.name for chosen in listed], left=True),
        TextColumn("batch", [str(chosen.batch_size) for chosen in listed]),
        TextColumn("accumulation", [str(chosen.accumulation) for chosen in listed]),
        TextColumn("effective", [str(chosen.effective_batch) for chosen in listed]),
        *(TextColumn(name, [_number(chosen.variables.get(name)) for chosen in listed]) for name in variables),
        TextColumn("predicted", [_gb_or_blank(chosen.need_bytes) for chosen in listed]),
        *[TextColumn("measured", [_gb_or_blank(chosen.measured_bytes) for chosen in listed])] * measured,
        TextColumn("share", [f"{chosen.need_bytes / total:.0%}" for chosen in listed]),
        TextColumn("stopped by", stopped_by, left=True),
        TextColumn("method", [chosen.method for chosen in listed], left=True),
    ]
    return table_lines(columns)


def _bound(name: str) -> str:
    return in_terminal(name) if name == USERS_BOUND else name


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _gb_or_blank(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / GB:.2f} GB"


def _files(found: Optimization, dry_run: bool) -> list[str]:
    """The changes of each file, as a diff if nothing was written."""
    if not found.edits:
        return []
    if dry_run:
        return ["", *(_diff(edit) or f"{edit.path}: unchanged" for edit in found.edits)]
    lines = [f"{edit.path}: {key} {old} → {new}" for edit in found.edits for key, old, new in edit.changes]
    lines += [f"{edit.path}: unchanged" for edit in found.edits if not edit.changes]
    return ["", *lines, *(f"backup: {path}" for path in found.backups)]


def _diff(edit: FileEdit) -> str:
    """The change of a file in unified form; empty if there is none."""
    before, after = edit.before.splitlines(), edit.after.splitlines()
    return "\n".join(unified_diff(before, after, str(edit.path), str(edit.path), lineterm=""))
