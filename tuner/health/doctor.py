"""``doctor``: checks this machine and reports the findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.errors import Spelling, in_python, spelled
from tuner.health.checks import Finding, examine
from tuner.health.gathering import gather

INDENT = " " * 9


def doctor() -> list[Finding]:
    """Looks at this machine: Python, torch, GPUs and who holds their memory, Ray, memory, disks, and the command.

    Nothing is changed, and no Ray is started.

    Returns:
        A finding for each thing that was looked at; its ``level`` is "ok", "warning" or "problem".
    """
    return findings(in_python)


def findings(spelling: Spelling) -> list[Finding]:
    """The findings of ``doctor``, with options spelled for the reader."""
    return [
        replace(each, text=spelled(each.text, spelling), remedy=spelled(each.remedy, spelling))
        for each in examine(gather())
    ]


def findings_text(findings: Sequence[Finding]) -> str:
    """The findings for a terminal: a line each with its remedy below, and the counts at the end."""
    lines = []
    for each in findings:
        lines.append(f"{each.level:<8} {each.check}: {each.text}")
        if each.remedy:
            lines.append(f"{INDENT}→ {each.remedy}")
    problems, warnings = (sum(each.level == level for each in findings) for level in ("problem", "warning"))
    return "\n".join([*lines, f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}"])


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'s' * (number != 1)}"
