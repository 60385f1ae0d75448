"""Tables on terminals of several widths."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.support.attempts import attempt
from tuner.objective import Objective
from tuner.reporting.plan_text import estimates_text
from tuner.reporting.result_tables import average_columns, print_trials
from tuner.reporting.texts import TextColumn, table_lines
from tuner.trial import GB, MemoryEstimate

WIDTHS = [60, 80, 120]
NAMES = [f"hidden=64,layers={layers},lr=0.0{layers}" for layers in (1, 2, 3)]
VARYING = {"hidden_dim": 256, "num_layers": 3, "learning_rate": 0.00123, "weight_decay": 1e-06}


def rows(seeds: int = 1) -> list[object]:
    return [
        attempt(
            trial_id=f"t{number}{seed}",
            name=name,
            seed=seed,
            status="failed" if number == 2 else "completed",
            error="ValueError: " + "x" * 200 if number == 2 else "",
            val_rmse=None if number == 2 else 0.9,
            test_rmse=None if number == 2 else 0.8,
            **{f"config/{key}": value * (1 + number) for key, value in VARYING.items()},
        )
        for number, name in enumerate(NAMES)
        for seed in range(seeds)
    ]


def console(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)


def lines_of(printed: Console) -> list[str]:
    return printed.file.getvalue().splitlines()  # type: ignore[attr-defined]


def check(lines: list[str], width: int, whole: list[str]) -> None:
    """Lines are within the width, and have these words whole."""
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert [word for word in whole if word not in words] == []
    assert all(name in words for name in NAMES)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_of_results_never_cuts_names_nor_what_varies(width: int) -> None:
    printed = console(width)
    print_trials(printed, rows(), Objective("val_rmse"))
    check(lines_of(printed), width, ["val_rmse", *VARYING, "256", "512", "0.00246", "3e-06", "0.9000"])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_of_means_never_cuts_names_nor_what_varies(width: int) -> None:
    columns, _ = average_columns(rows(seeds=3), Objective("val_rmse"), [f"config/{key}" for key in VARYING])
    lines = table_lines(columns, width)
    check(lines, width, ["verdict", *VARYING, "256", "0.00246"])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_of_estimates_never_cuts_names_nor_needs(width: int) -> None:
    guess = MemoryEstimate("traced", 10**7, 10**7, 10**7, 10**9, data_bytes=10**8, context_bytes=10**8, note="x" * 90)
    *lines, note, below = estimates_text([(name, guess) for name in NAMES], width).splitlines()
    check(lines, width, ["need", "method", f"{1.23e9 / GB:.3f}"])
    assert (note, below[:28]) == (f"{NAMES[-1]}: {guess.note}", "GB (2**30 bytes) at the peak")


def test_seconds_and_memory_are_left_out_first_and_the_error_of_what_has_failed_stays() -> None:
    heads, left_out = list[str](), list[str]()
    for width in range(400, 115, -1):
        printed = console(width)
        print_trials(printed, rows(), Objective("val_rmse"))
        lines, before = lines_of(printed), heads
        heads = lines[0].split()
        left_out += [head for head in before if head not in heads]
    assert left_out[:3] == ["seconds", "estimated_gb", "peak_gb"]
    assert {"name", "val_rmse", *VARYING} <= set(heads) and any(line.endswith("  error") for line in lines)


@pytest.mark.parametrize("statuses", [("completed", "pruned"), ("completed", "completed")])
def test_the_status_is_left_out_only_where_all_trials_are_completed(statuses: tuple[str, ...]) -> None:
    shown = [
        attempt(name=f"n{n}", status=status, val_rmse=0.9, **{f"config/{'k' * 45}": n})
        for n, status in enumerate(statuses)
    ]
    printed = console(80)
    print_trials(printed, shown, Objective("val_rmse"))
    heads, _, _, *left_out = lines_of(printed)
    assert ("status" in heads.split()) == ("pruned" in statuses)
    assert left_out[0].startswith("left out"), "the table is one block"
    assert " ".join(left_out).endswith("(shown by a wider terminal or results.csv)")


def test_what_fits_nowhere_follows_in_a_block_with_the_names_again() -> None:
    columns = [
        TextColumn("name", ["a", "b"], left=True, names=True),
        *(TextColumn(f"key{n}", ["1", "22"]) for n in range(4)),
    ]
    assert table_lines(columns, 18) == [
        *("name  key0  key1", "a        1     1", "b       22    22"),
        *("name  key2  key3", "a        1     1", "b       22    22"),
    ]
    assert len(table_lines(columns)) == 3


def test_a_character_that_is_as_wide_as_two_counts_as_two() -> None:
    columns = [TextColumn("name", ["幅64", "a"], left=True, names=True), TextColumn("n", ["1", "22"])]
    assert table_lines(columns) == ["name   n", "幅64   1", "a     22"]
