from __future__ import annotations

import pytest

from tuner import auto_estimate_memory_from_configs, estimate_model_memory
from tuner.datasets.ratings import RatingData
from tuner.errors import InputError
from tuner.estimation.estimators import StaticEstimator
from tuner.estimation.graphsage_formula import estimate_graphsage
from tuner.estimation.service import EstimationService
from tuner.machine.devices import ram_device
from tuner.search.configurations import complete
from tuner.trial import GB, Device
from tuner.workloads.graphsage.workload import GraphSAGE
from tuner.workloads.lookup import find_workload

# (hidden_dim, num_layers, GB) at 943 users and 1,682 items, from the GraphSAGE tuning guide.
REFERENCE = [
    (32, 2, 1.2),
    (64, 2, 1.5),
    (64, 3, 1.7),
    (64, 4, 1.7),
    (128, 2, 2.0),
    (128, 3, 2.8),
    (256, 2, 3.5),
    (256, 4, 4.2),
]


@pytest.mark.parametrize(("hidden", "layers", "gb"), REFERENCE)
def test_the_formula_is_within_15_percent_of_the_reference(hidden: int, layers: int, gb: float) -> None:
    assert estimate_model_memory(hidden, layers, 943, 1682) == pytest.approx(gb, rel=0.15)


def test_it_grows_with_width_depth_users_and_items() -> None:
    base = estimate_model_memory()
    for larger in ({"hidden_dim": 65}, {"num_layers": 3}, {"num_users": 1001}, {"num_items": 1001}):
        assert estimate_model_memory(**larger) > base


def test_the_largest_configuration_decides() -> None:
    configs = [{"hidden_dim": 64}, {"hidden_dim": 256, "num_layers": 4}, {"name": "defaults"}]
    assert auto_estimate_memory_from_configs(configs, 943, 1682) == estimate_model_memory(256, 4, 943, 1682)


def test_the_parts_add_up_to_the_formula(ratings: RatingData) -> None:
    config = complete({"hidden_dim": 128}, GraphSAGE.hyperparameters)
    estimate = estimate_graphsage(config, ratings)
    formula = estimate_model_memory(128, 2, 40, 60) * GB
    assert estimate.total_bytes == pytest.approx(formula, rel=0.02)
    assert estimate.optimizer_bytes == 2 * estimate.parameter_bytes > 0


@pytest.mark.parametrize("fanout", ["1000", "30,30", "8,8,8"])
def test_samples_of_neighbours_are_counted(fanout: str, ratings: RatingData) -> None:
    layers = fanout.count(",") + 1
    values = {"hidden_dim": 16, "num_layers": layers, "batch_size": 400}
    config = complete({**values, "fanout": fanout}, GraphSAGE.hyperparameters)
    few, many = (estimate_graphsage({**config, "fanout": given}, ratings) for given in ("all", fanout))
    traced = EstimationService("traced").raw(GraphSAGE(), config, ratings, ram_device())
    assert many.activation_bytes - few.activation_bytes > traced.activation_bytes


@pytest.mark.parametrize(
    ("values", "states"),
    [({"optimizer": "adamw"}, 2), ({"optimizer": "sgd", "momentum": 0.9}, 1), ({"optimizer": "sgd"}, 0)],
)
def test_it_counts_the_state_of_the_configurations_optimizer(
    values: dict[str, object], states: int, ratings: RatingData
) -> None:
    estimate = estimate_graphsage(complete(values, GraphSAGE().schema), ratings)
    assert estimate.optimizer_bytes == states * estimate.parameter_bytes


def test_it_prints_as_one_readable_line(ratings: RatingData) -> None:
    config = complete({"hidden_dim": 128}, GraphSAGE.hyperparameters)
    line = str(estimate_graphsage(config, ratings))
    assert line.startswith("0.91 GB static (")
    assert "context 0.85" in line


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="num_layers = 0: must be at least 1"):
        estimate_model_memory(num_layers=0)
    with pytest.raises(InputError, match="the list is empty"):
        auto_estimate_memory_from_configs([], 943, 1682)


@pytest.mark.parametrize("name", ["gt-ssl", "kd-gat"])
def test_a_workload_without_a_formula_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match=f"^workload {name} has no memory formula: it can be traced or measured$"):
        StaticEstimator().estimate(find_workload(name), {}, None, ram_device(), expandable_segments=False)


def test_a_formula_does_not_count_a_graphs_pool_so_another_method_follows(
    ratings: RatingData, gpu_16gb: Device
) -> None:
    config = complete({"cuda_graphs": 1, "batch_size": 96}, GraphSAGE().schema)
    estimate = EstimationService("static", calibration=False).estimate(GraphSAGE(), config, ratings, gpu_16gb)
    assert estimate.method == "traced"
    assert "the memory formula does not count the pool of cuda_graphs" in estimate.note
