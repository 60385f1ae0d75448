"""What ``scripts/benchmark trials_per_hour`` plans and reads off its trials."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from scripts.gpu import cells as gpu_cells
from scripts.gpu.cells import FRESH, FUNCTION, GRAPHS, MAIN, WAYS, Cell, Measured, Sample, Trial


def trial(seed: int, *epochs: float, value: float = 1.0) -> Trial:
    return Trial(seed, epochs, epochs[-1], value, None)


def test_what_matters_most_is_measured_first() -> None:
    cells = gpu_cells.plan(MAIN, WAYS, [8, 16], 10, graphs=True)
    assert cells[:7] == [
        Cell(MAIN, "ours", 16, 160),
        Cell(MAIN, "ray-tune", 16, 160),
        Cell(MAIN, "ours", 16, 160, (GRAPHS,)),
        Cell(MAIN, "ours", 8, 80),
        Cell(MAIN, "ray-tune", 8, 80),
        Cell(FUNCTION, "ours", 8, 80, (FRESH,)),
        Cell(FUNCTION, "ours", 8, 80),
    ]
    assert {(each.model, each.way) for each in cells[7:]} >= {("mlp", "fresh"), ("mlp", "warm"), (MAIN, "fresh")}
    assert {each.way for each in gpu_cells.plan(MAIN, ("ray-tune",), [8, 16], 10, graphs=True)} == {"ray-tune"}


def test_a_later_command_reads_the_cells_of_an_earlier_one() -> None:
    cell = Measured(Cell(MAIN, "ours", 2, 4, (GRAPHS,)), "measured", 100.0, trials=(trial(0, 0, 10, 20),))
    assert Measured.of(json.loads(json.dumps(asdict(cell)))) == cell


def test_trials_are_counted_while_all_workers_are_busy() -> None:
    trials = [trial(0, 0, 10, 20), trial(1, 5, 15, 25), trial(2, 20, 30, 40), trial(3, 25, 35, 45)]
    assert gpu_cells.window(trials, 2) == (5, 25)
    assert gpu_cells.rate(trials, (5, 25), epochs=2) == pytest.approx(0.1), "two trials' epochs of 10 s, side by side"
    assert gpu_cells.window(trials, 1) == (0, 45)


def test_energy_is_counted_by_the_meter_or_by_power() -> None:
    counted = [Sample(at, 0.5, 100.0, 200.0 * at) for at in range(11)]
    assert gpu_cells.usage(counted, (0, 10)) == (0.5, 2000.0, "counter")
    assert gpu_cells.usage([Sample(5, 0.5, 100.0, None)], (0, 10)) == (0.5, 1000.0, "power")
    assert gpu_cells.usage([], (0, 10)) == (None, None, "")


def test_a_cell_says_what_was_measured() -> None:
    cell = Cell("mlp", "warm", 1, 2)
    found = gpu_cells.measured(Measured(cell, workers=1), [trial(0, 0, 30), trial(1, 30, 60)], 1, [], 60.0)
    assert (found.state, found.trials_an_hour) == ("measured", 120.0)
    assert gpu_cells.measured(Measured(cell), [], 1, [], 1.0).state == "failed"


def test_metrics_are_compared_over_the_same_seeds() -> None:
    cell = Cell("mlp", "warm", 1, 2)
    one = Measured(cell, trials=(trial(0, 0, 1, value=1.0), trial(1, 0, 1, value=2.0)))
    other = Measured(cell, trials=(trial(1, 0, 1, value=2.5), trial(2, 0, 1, value=9.0)))
    assert gpu_cells.difference(one, other) == 0.5


def test_each_bar_is_judged_also_where_nothing_was_measured() -> None:
    ours = Measured(Cell(MAIN, "ours", 16, 160), "measured", 900.0, trials=(trial(0, 0, 1),))
    theirs = Measured(Cell(MAIN, "ray-tune", 16, 160), "measured", 800.0, trials=(trial(0, 0, 1),))
    judged = gpu_cells.verdicts([ours, theirs], [0.0, 0.004, -0.01])
    assert [met for met, _ in judged] == [False, True, True, True]
    assert judged[0][1].endswith("tuner with CUDA graphs or Ray Tune was not measured")
    graphs = Measured(Cell(MAIN, "ours", 16, 160, (GRAPHS,)), "measured", 1300.0, trials=(trial(0, 0, 1, value=1.5),))
    lost = Measured(Cell(MAIN, "ours", 8, 80), "measured", 10.0, ran_out=1)
    judged = gpu_cells.verdicts([ours, graphs, theirs, lost], [0.0, -0.03])
    assert [met for met, _ in judged] == [False, True, False, False], "other errors, an attempt, an estimate"
