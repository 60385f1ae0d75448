"""What ``scripts/benchmark trials_per_hour`` plans and reads off its trials."""

from __future__ import annotations

import pytest

from scripts.gpu import cells as gpu_cells
from scripts.gpu.cells import ADAPTIVE, GRAPHS, Cell, Measured, Sample, Timed, Trial

MODELS = ("graphsage-64x2", "mlp")
LEVERS = {"graphsage-64x2": (GRAPHS, ADAPTIVE), "mlp": ()}


def trial(seed: int, *epochs: float, value: float = 1.0, reserved: int | None = None) -> Trial:
    return Trial(seed, epochs, epochs[-1], value, reserved, 110 if reserved else None)


def test_the_main_model_is_measured_in_every_way_with_each_lever_and_all_together() -> None:
    cells = gpu_cells.plan(MODELS, gpu_cells.WAYS, [1, 4, 16], LEVERS)
    main = {(each.way, each.workers, each.levers) for each in cells if each.model == gpu_cells.MAIN}
    assert {("fresh", 1, ()), ("warm", 1, ()), ("ray-tune", 4, ()), ("ray-tune", 16, ())} <= main
    assert {("ours", 16, levers) for levers in [(), (ADAPTIVE,), (GRAPHS,), (GRAPHS, ADAPTIVE)]} <= main
    assert {("fresh", "mlp"), ("warm", "mlp"), ("ours", "mlp"), ("ray-tune", "mlp")} <= {
        (each.way, each.model) for each in cells
    }


def test_trials_are_as_long_as_the_time_allows() -> None:
    cells = gpu_cells.plan(MODELS, gpu_cells.WAYS, [1, 4], LEVERS)
    times = dict.fromkeys(MODELS, Timed(epoch=0.1, beside=0.0))
    epochs = [gpu_cells.choose_epochs(cells, times, 5.0, seconds, 16)["mlp"] for seconds in (60, 300, 10_000)]
    assert epochs == sorted(epochs) and epochs[0] == 10 and epochs[-1] == 50


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


def test_a_cell_says_what_was_measured_and_how_far_its_estimate_is_off() -> None:
    cell = Cell("mlp", "warm", 1, 2)
    found = gpu_cells.measured(
        Measured(cell, workers=1), [trial(0, 0, 30, reserved=100), trial(1, 30, 60)], 1, [], 60.0
    )
    assert (found.state, found.trials_an_hour, found.estimate_off) == ("measured", 120.0, pytest.approx(0.1))
    assert gpu_cells.measured(Measured(cell), [], 1, [], 1.0).state == "failed"


def test_metrics_are_compared_over_the_same_seeds() -> None:
    cell = Cell("mlp", "warm", 1, 2)
    one = Measured(cell, trials=(trial(0, 0, 1, value=1.0), trial(1, 0, 1, value=2.0)))
    other = Measured(cell, trials=(trial(1, 0, 1, value=2.5), trial(2, 0, 1, value=9.0)))
    assert gpu_cells.difference(one, other) == 0.5


def test_ray_tunes_best_fraction_is_that_of_the_main_model_and_of_a_measured_cell() -> None:
    assert gpu_cells.main_of(["graphsage-32x2", "graphsage-64x2"]) == "graphsage-64x2"
    cells = [
        Measured(Cell("mlp", "ray-tune", 16, 32), "measured", 900.0, workers=16),
        Measured(Cell("graphsage-64x2", "ray-tune", 16, 32), "failed"),
        Measured(Cell("graphsage-64x2", "ray-tune", 8, 16), "measured", 100.0, workers=8),
        Measured(Cell("graphsage-64x2", "ray-tune", 4, 12), "measured", 200.0, workers=4),
    ]
    assert gpu_cells.best_fraction(cells, "graphsage-64x2") == 4
    assert gpu_cells.best_fraction(cells[:2], "graphsage-64x2") is None


def test_each_bar_is_judged_where_a_way_was_not_measured() -> None:
    cells = [
        Measured(Cell(gpu_cells.MAIN, "ours", 16, 32), "measured", 900.0, workers=16, trials=(trial(0, 0, 1),)),
        Measured(Cell(gpu_cells.MAIN, "warm", 1, 6), "measured", 150.0, workers=1, trials=(trial(0, 0, 1),)),
        Measured(Cell(gpu_cells.MAIN, "fresh", 1, 3), "measured", 100.0, workers=1),
        Measured(Cell(gpu_cells.MAIN, "ray-tune", 16, 32), "failed"),
    ]
    judged = gpu_cells.verdicts(cells)
    assert [met for met, _ in judged] == [True, False, True, True, False]
    assert judged[1][1].startswith("graphsage-64x2: ray-tune not measured")
