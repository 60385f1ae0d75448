"""Whatever a study's files accept, they give back: records are drawn from the edges of what they may hold."""

from __future__ import annotations

import json
import math
import os
import random
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from tuner.errors import InputError
from tuner.records import machine_log
from tuner.records.attempts import Attempt, to_csv
from tuner.records.checking import LARGEST_AMOUNT, Amount, CheckedValue, Name, Names, Shown, Size, TrialId, Whole
from tuner.records.epochs import EpochLog, read_epochs
from tuner.records.journal import Journal, read_attempts
from tuner.records.machine_log import GpuLine, MachineLine, read_machine
from tuner.records.read_studies import read_studies
from tuner.records.study_record import Count, Named, StudyRecord, Suggestion, read_study
from tuner.search.configurations import configurations
from tuner.trial import MOST_SEED, Configuration, Device, EpochReport, MemoryEstimate, Outcome, Placement, Trial
from tuner.values import Label
from tuner.workloads.session import to_numbers

LARGEST = sys.float_info.max
FLOATS = (0.0, -0.0, 5e-324, 0.1 + 0.2, 1.2e-9, 0.9999991, 1e16, -1e300, LARGEST, -LARGEST)
REPORTED = (*FLOATS, 7, 2**64 - 1, math.nan, math.inf, -math.inf)
TEXTS = (
    "a",
    "lr",
    "caf\udce9.csv",
    "a\0b",
    "é",
    "a b",
    "a\nb",
    "\r",
    "\ufeffx",
    "=1+1",
    "'",
    '",',
    "\ue000",
    "\U0001f600",
)
CONFIGURED = (
    *TEXTS,
    *FLOATS[:-2],
    "",
    "1e3",
    2**64 - 1,
    -(10**299),
    True,
    None,
    [1, "a"],
    math.nan,
    LARGEST,
    10**301,
)
TIMES = (0.0, 0.001, -1.0, -2e9, 1.8e9)
SIZES = (0, 1, 2**30 + 1, 2**69)
WHOLE = (0, 1, MOST_SEED)
GIVEN: list[tuple[object, Sequence[object]]] = [
    (Amount, (0.0, 5e-324, 0.1, LARGEST_AMOUNT)),
    (CheckedValue, (*FLOATS[:-2], 2**64 - 1, "a\0b", "", "é", None, True, [1, (2,)], {1: "a"}, Label("x"))),
    (Count, (1, 1_000_000)),
    (Name, ("a", "é", "a\nb", " ", "\U0001f600")),
    (Shown, ("", "a\0b", "é")),
    (TrialId, ("t001", "t-1.5+é")),
    (Whole, WHOLE),
    (Size, SIZES),
    (bool, (True, False)),
    (float, FLOATS),
    (int, (-(2**70), 0, 2**70)),
    (object, (None, True, 0.1, "\udce9", [1, {"a": []}])),
    (str, ("", "a\0b", "\udce9")),
    (type(None), (None,)),
]


def drawn(draw: random.Random, kind: Any) -> Any:
    """A value of an annotated type."""
    if own := [values for known, values in GIVEN if known == kind]:
        return draw.choice(own[0])
    if kind == Named:
        return Configuration("a", {"lr": drawn(draw, CheckedValue)})
    if kind == Names:
        return draw.choice(["a", ["é", "b"]])
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return draw.choice(inner)
    if origin in (Union, types.UnionType):
        return drawn(draw, draw.choice(inner))
    if origin is Mapping:
        return {drawn(draw, inner[0]): drawn(draw, inner[1]) for _ in range(draw.randrange(3))}
    if origin is Sequence:
        return [drawn(draw, inner[0]) for _ in range(draw.randrange(3))]
    assert is_dataclass(kind), kind
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{field.name: drawn(draw, hints[field.name]) for field in fields(kind)})  # type: ignore[operator]


def reported(draw: random.Random) -> dict[str, float]:
    """Metrics as ``tuner.report`` takes them; other names are drawn until it does."""
    while True:
        try:
            return to_numbers({draw.choice(TEXTS): draw.choice(REPORTED) for _ in range(3)})
        except InputError:
            continue


def trial(draw: random.Random) -> Trial:
    """A trial of a configuration that a study accepts."""
    while True:
        name = {"name": draw.choice(TEXTS)} if draw.random() < 0.5 else {}
        entry = name | {draw.choice(TEXTS): draw.choice(CONFIGURED) for _ in range(2)}
        try:
            (found,) = configurations([entry], None)
        except InputError:
            continue
        return Trial("t001", "toy", found.name, found.values, draw.choice(WHOLE), draw.choice(WHOLE))


def outcome(draw: random.Random) -> Outcome:
    device = Device("", "cpu", 0, "cpu", 1, 1, 1, host=draw.choice(TEXTS))
    own, estimate = trial(draw), MemoryEstimate("given", context_bytes=draw.choice(SIZES))
    placement = Placement(own, estimate, device, 1e-9, draw.choice(SIZES), 1, draw.choice(SIZES))
    peak, error = draw.choice((None, *SIZES)), draw.choice(TEXTS)
    beside = {"host_peak_bytes": draw.choice((None, *SIZES)), "rank_peaks": tuple(draw.choices((None, *SIZES), k=2))}
    measured = (reported(draw), draw.choice(WHOLE), 1e-9, peak)
    return Outcome(own, "completed", placement, *measured, error, phase="training", **beside)


@pytest.fixture(params=[1_000, pytest.param(10_000, marks=pytest.mark.long)])
def number(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many records are drawn, which the disk need not have at once."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return int(request.param)


def test_attempts_come_back_from_the_journal_and_their_metrics_from_the_table(number: int, tmp_path: Path) -> None:
    draw, journal = random.Random(1), Journal(tmp_path / "attempts.jsonl")
    for _ in range(number):
        ended = outcome(draw)
        at = draw.choice(TIMES)
        journal.append(Attempt.of(ended, ended.placement.estimate, (at, at + 1)))  # type: ignore[union-attr]
    journal.close()
    rows, notes = read_attempts(tmp_path / "attempts.jsonl")
    both = [[repr(replace(row, device="", error="")) for row in some] for some in (rows, journal.rows)]
    assert both[0] == both[1] and not notes
    assert [row.result for row in rows] == [row.result for row in journal.rows]
    (tmp_path / "table.csv").write_text(to_csv(rows), encoding="utf-8")
    (table,), _ = read_studies(tmp_path / "table.csv")
    measured = [{name: value for name, value in row.metrics.items() if value is not None} for row in rows]
    assert [(row.name, row.metrics) for row in table.rows] == [
        (row.name, metrics) for row, metrics in zip(rows, measured, strict=True)
    ]


def test_reports_of_epochs_come_back(number: int, tmp_path: Path) -> None:
    draw = random.Random(2)
    log = EpochLog(tmp_path / "epochs.jsonl", lambda: draw.choice(TIMES))
    reports = [
        EpochReport("t001", draw.choice(WHOLE), 0, reported(draw), *draw.choices(SIZES, k=2)) for _ in range(number)
    ]
    for report in reports:
        log.add(report, 1)
    log.close()
    lines = read_epochs(tmp_path / "epochs.jsonl")
    assert [(line.epoch, [repr(value) for value in line.metrics.values()]) for line in lines] == [
        (report.epoch, [repr(None if math.isnan(value) else value) for value in report.metrics.values()])
        for report in reports
    ]


def test_descriptions_of_studies_come_back(number: int, tmp_path: Path) -> None:
    draw = random.Random(3)
    for _ in range(number // 10):
        record = drawn(draw, StudyRecord)
        (tmp_path / "study.json").write_bytes(record.to_json())
        assert read_study(tmp_path).to_json() == record.to_json()


def test_what_a_search_suggests_comes_back(number: int, tmp_path: Path) -> None:
    draw, found = random.Random(5), []
    (tmp_path / "study.json").write_bytes(StudyRecord(workload="a").to_json())
    for position in range(1, number + 1):
        given = Configuration(draw.choice(TEXTS[4:]), trial(draw).config)
        found.append(given)
        with (tmp_path / "suggestions.jsonl").open("ab") as file:
            file.write(Suggestion(number=position, configuration=given).to_line())
    assert [repr(made) for made in read_study(tmp_path).configurations] == [repr(given) for given in found]


def test_the_load_of_the_machine_comes_back(number: int, tmp_path: Path) -> None:
    draw, file = random.Random(4), tmp_path / "machine.jsonl"
    lines = [
        MachineLine(
            at=draw.choice(TIMES),
            busy=draw.random(),
            ram_gb=draw.choice(SIZES) / 2**30,
            gpus={"node/cuda:0": GpuLine(used_gb=draw.choice(SIZES) / 2**30, busy=draw.choice((None, 0.5)))},
        )
        for _ in range(number)
    ]
    file.write_text("".join(json.dumps(machine_log.to_line(line)) + "\n" for line in lines))
    assert read_machine(file) == lines
