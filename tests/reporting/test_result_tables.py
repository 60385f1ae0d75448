"""The tables and the line that say what a study's best trial was."""

from __future__ import annotations

import io

from rich.console import Console

from tests.support.attempts import attempt
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.reporting.result_tables import HEAD, TAIL, best_text, print_averages, print_trials

ACCURACY = Objective("val_accuracy", "maximize")


def trial(name: str, accuracy: float, lr: float, seed: int = 0, **config: object) -> Attempt:
    columns = {f"config/{key}": value for key, value in {"lr": lr, "epochs": 3, **config}.items()}
    return attempt(trial_id=f"{name}{seed}", name=name, seed=seed, val_accuracy=accuracy, **columns)


def test_the_best_is_told_with_the_hyperparameters_that_vary() -> None:
    rows = [trial("a", 0.987, 0.01, hidden=289), trial("b", 0.9, 0.1, hidden=64), trial("c", 0.8, 0.1, momentum=0.9)]
    assert best_text(rows[0], rows, ACCURACY) == "val_accuracy 0.9870 with lr=0.01, hidden=289"
    assert best_text(rows[0], rows[:1], ACCURACY) == "val_accuracy 0.9870", "a single one differs from none"


def test_means_over_seeds_are_told_with_the_hyperparameters_that_vary() -> None:
    rows = [trial(name, value, lr, seed) for name, value, lr in (("a", 0.8, 0.1), ("b", 0.9, 0.2)) for seed in (0, 1)]
    console = Console(file=io.StringIO(), width=120, highlight=False)
    print_averages(console, rows, ACCURACY, ["config/lr"])
    first, second, *_ = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first.split()[-2:] == ["verdict", "lr"]
    assert (second.split()[0], second.split()[-2:]) == ("b", ["best", "0.2"])


def test_headline_metrics_of_the_test_split_stand_beside_the_objective() -> None:
    rows = [attempt(name="a", seed=seed, val_accuracy=0.9, test_f1=0.5 + seed / 10) for seed in (0, 1)]
    console = Console(file=io.StringIO(), width=160, highlight=False)
    print_trials(console, rows[:1], Objective("val_accuracy"), ("f1", "auroc"))
    print_averages(console, rows, ACCURACY, headline=("f1", "auroc"))
    one, _, several, means, *_ = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert one.split()[:4] == ["name", "status", "val_accuracy", "test_f1"], "no row has a test_auroc"
    assert "mean test_f1" in several
    assert "0.55 ±" in means


def test_a_terminal_shows_the_first_and_the_last_of_many_trials_and_says_how_the_others_ended() -> None:
    rows = [trial(f"a{number}", 1 - number / 2000, 0.1) for number in range(2000)]
    rows += [attempt(trial_id="b", name="b", status="failed", error="E: no")] * 7
    console = Console(file=io.StringIO(), width=120, highlight=False)
    print_trials(console, rows, Objective("val_accuracy"))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 1 + HEAD + TAIL + 1 and lines[TAIL + HEAD].startswith("b ")
    between = "left out: 1,982 trials between the first 20 and the last 5 (1,980 completed, 2 failed)"
    assert lines[-1] == f"{between}, shown by results.csv"


def test_the_error_of_trials_that_failed_is_cut_and_not_left_out() -> None:
    rows = [trial("a", 0.5, 0.1), attempt(trial_id="b", name="b", status="failed", error="ValueError: " + "no " * 50)]
    for width in (60, 80):
        console = Console(file=io.StringIO(), width=width, highlight=False)
        print_trials(console, rows, Objective("val_accuracy"))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert "ValueError: no no" in "".join(lines) and max(map(len, lines)) <= width
