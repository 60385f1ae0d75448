"""What the panel of a trial shows beside its row: its curve, attempts, traceback, the end of its log, its command."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tuner.errors import printable
from tuner.machine.safe_files import MOST_BYTES, regular
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLine, histories
from tuner.records.files import TRACEBACKS
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.page.parts import compact, json_block
from tuner.reporting.texts import MOST_OF_ERROR

LOG_LINES, LINE, LOG_BYTES = 12, 200, 2**14  # of the end of a log
MOST_OF_TRACEBACK = 3000  # characters; its end says most
MOST_TEXTS = 600_000  # characters of logs and tracebacks in a page: of failed trials first, then of the best
DIGITS = 5  # significant ones of a curve
TRACEBACK = re.compile(r"^== (\S+) .*\n", re.M)


def details_html(study: RecordedStudy, listed: Sequence[Attempt], again: Callable[[Attempt], str]) -> str:
    """A block of JSON for panel.js about the listed rows."""
    curves, ids = histories(study.epochs), {row.trial_id for row in listed}
    texts = dict(_texts(study, listed))
    content = {
        "best": {name: best.trial_id for name in study.objectives if (best := study.best(name))},
        "objectives": {
            name: [[one.metric, one.direction] for one in objective.all]
            for name, objective in study.objectives.items()
        },
        "curves": {
            row.trial_id: _curve(curves[row.trial_id], study.objectives[row.workload].metric)
            for row in listed
            if row.trial_id in curves
        },
        "attempts": _attempts(study.attempts, ids),
        "texts": texts,
        "again": {row.trial_id: command for row in listed if row.device and (command := again(row))},
    }
    return json_block("details", compact(content))


def _curve(points: Mapping[int, EpochLine], metric: str) -> list[list[float]]:
    """The epochs with a value of the metric, and the values."""
    found = {epoch: value for epoch, line in points.items() if (value := line.metrics.get(metric)) is not None}
    return [list(found), [float(f"{value:.{DIGITS}g}") for value in found.values()]]


def _attempts(attempts: Sequence[Attempt], ids: set[str]) -> dict[str, list[Sequence[object]]]:
    """Number, status, device, epochs, seconds, reserved and used GB, and reason of each attempt, by trial."""
    found: dict[str, list[Sequence[object]]] = {}
    for row in attempts:
        if row.trial_id in ids:
            memory = [None if gb is None else round(gb, 3) for gb in (row.limit_gb, row.peak_memory_gb)]
            error = printable(row.error, MOST_OF_ERROR)
            line = [row.attempts, row.status, row.device, row.epochs, round(row.own_seconds, 1), *memory, error]
            found.setdefault(row.trial_id, []).append(line)
    return found


def _texts(study: RecordedStudy, listed: Sequence[Attempt]) -> Iterator[tuple[str, list[str]]]:
    """The traceback and the end of the log of each trial that has one, until there is too much text."""
    tracebacks, room = _tracebacks(study.path), MOST_TEXTS
    for row in sorted(listed, key=lambda row: row.status == "completed"):
        both = [tracebacks.get(row.trial_id, ""), _log_end(study.log(row.trial_id))]
        if any(both) and room > 0:
            room -= sum(map(len, both))
            yield row.trial_id, both


def _tracebacks(folder: Path) -> dict[str, str]:
    """The end of each trial's last traceback."""
    with suppress(OSError):
        text = regular(folder / TRACEBACKS, MOST_BYTES).read_text(errors="replace")
        _, *parts = TRACEBACK.split(text)
        return {
            trial_id: _shown(part.rstrip()[-MOST_OF_TRACEBACK:])
            for trial_id, part in zip(parts[::2], parts[1::2], strict=True)
        }
    return {}


def _log_end(file: Path) -> str:
    """The last lines of a log; empty without one."""
    with suppress(OSError), regular(file).open("rb") as log:
        log.seek(max(0, file.stat().st_size - LOG_BYTES))
        lines = log.read().decode(errors="replace").rstrip().splitlines()[-LOG_LINES:]
        return "\n".join(_shown(line[-LINE:]) for line in lines)
    return ""


def _shown(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))
