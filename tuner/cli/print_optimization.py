"""The output of ``tuner optimize``."""

from __future__ import annotations

from difflib import unified_diff
from typing import TYPE_CHECKING

from tuner.reporting.console import WIDE
from tuner.sizing.search import USERS_BOUND
from tuner.spec.spelling import in_terminal
from tuner.trial import GB

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.api.optimize import Optimization
    from tuner.sizing.choices import Chosen
    from tuner.sizing.config_edits import FileEdit


def optimization_text(found: Optimization, dry_run: bool) -> str:
    """The device, a row for each stage or configuration, the reasons, and the changes of files."""
    from rich.console import Console

    console = Console(width=WIDE, highlight=False)
    with console.capture() as capture:
        console.print(_table(found))
    table = "\n".join(line.rstrip() for line in capture.get().splitlines())
    lines = [_device_line(found), found.source, "", table, ""]
    lines += [f"- {text}" for text in found.notes]
    return "\n".join([*lines, *_files(found, dry_run)]).rstrip()


def _device_line(found: Optimization) -> str:
    device, goal = found.device, found.goal
    return (
        f"{device.name}: {device.total_bytes / GB:.2f} GB, of which a step may take {goal.limit_bytes / GB:.2f} GB "
        f"(safety margin {goal.safety_margin:g})"
    )


def _table(found: Optimization) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    variables = list(dict.fromkeys(name for chosen in found.chosen for name in chosen.variables))
    measured = ("measured",) if any(chosen.measured_bytes is not None for chosen in found.chosen) else ()
    heads = ("name", "batch", "accumulation", "effective", *variables, "predicted", *measured, "share", "stopped by")
    for head in (*heads, "method"):
        table.add_column(head, justify="left" if head in ("name", "stopped by", "method") else "right")
    for chosen in found.chosen:
        table.add_row(
            Text(chosen.name),
            str(chosen.batch_size),
            str(chosen.accumulation),
            str(chosen.effective_batch),
            *(f"{chosen.variables[name]:g}" if name in chosen.variables else "" for name in variables),
            f"{chosen.need_bytes / GB:.2f} GB",
            *(_measured(chosen) for _ in measured),
            f"{chosen.need_bytes / found.device.total_bytes:.0%}",
            in_terminal(USERS_BOUND) if chosen.stopped_by == USERS_BOUND else chosen.stopped_by,
            chosen.method,
        )
    return table


def _measured(chosen: Chosen) -> str:
    return "" if chosen.measured_bytes is None else f"{chosen.measured_bytes / GB:.2f} GB"


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
