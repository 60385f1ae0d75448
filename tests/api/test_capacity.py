"""Which card a study needs, and what would make fit what does not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

import tuner
from tests.support.commands import said
from tests.support.toy import Toy
from tuner.api.capacity import Capacity, capacity, card_sizes, cheapest_change, to_record
from tuner.cli.print_plan import capacity_text
from tuner.errors import InputError
from tuner.estimation.service import EstimatePair, EstimationService
from tuner.hyperparameters import Hyperparameter
from tuner.spec.settings import Settings
from tuner.trial import GB, Config, Configuration, MemoryEstimate, Trial
from tuner.workloads.task import Selection, TrainingTask


class Batched(Toy):
    """A toy whose batch can be divided, and some of whose modules can be computed again."""

    memory_scales_with: ClassVar[str | None] = "batch"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        **Toy.hyperparameters,
        "batch": Hyperparameter(8, 1, 1024, ""),
    }

    def checkpointed(self, model: Any) -> Any:
        return [model]


def footprint(config: Config) -> int:
    """GB: 2 for the weights, then 1 for each sample of a micro-batch; amp and checkpointing halve these."""
    samples = config["batch"] / config.get("accumulation", 1)
    switches = config.get("amp", 0) + config.get("gradient_checkpointing", 0)
    return int(GB * (2 + samples / 2**switches))


def change(limit_gb: float, batch: int = 8, **values: Any) -> dict[str, Any] | None:
    config = {"batch": batch, **values}
    found = cheapest_change(
        Batched(), config, lambda changed: footprint(changed) <= limit_gb * GB, lambda changed: True
    )
    return None if found is None else {key: value for key, value in found.items() if config.get(key) != value}


@pytest.mark.parametrize(
    ("limit_gb", "batch", "expected"),
    [
        (6, 8, {"accumulation": 2}),
        (3, 8, {"accumulation": 8}),
        (5, 5, {"amp": 1}),
        (2.5, 8, {"gradient_checkpointing": 1, "accumulation": 8}),
        (2.25, 8, {"gradient_checkpointing": 1, "amp": 1, "accumulation": 8}),
        (4, 6, {"gradient_checkpointing": 1, "accumulation": 2}),
        (3, 5, {"batch": 1}),
        (2.2, 8, None),
    ],
)
def test_the_cheapest_change_that_fits_is_found(limit_gb: float, batch: int, expected: dict[str, Any] | None) -> None:
    assert change(limit_gb, batch) == expected


def test_what_is_set_already_is_kept_and_a_smaller_batch_is_in_one_piece() -> None:
    assert change(3, 8, accumulation=4) == {"accumulation": 8}
    assert change(2.4, 6, amp=1, gradient_checkpointing=1, accumulation=2) == {"batch": 1, "accumulation": 1}


def test_nothing_in_between_is_estimated_where_the_extreme_does_not_fit() -> None:
    asked: list[Config] = []

    def fits(config: Config) -> bool:
        asked.append(config)
        return False

    assert cheapest_change(Batched(), {"batch": 1024}, fits, lambda changed: True) is None
    assert [config["batch"] for config in asked] == [1, 1]


def test_a_switch_that_is_refused_is_not_proposed() -> None:
    found = cheapest_change(
        Batched(), {"batch": 7}, lambda changed: footprint(changed) < 6 * GB, lambda changed: "amp" not in changed
    )
    assert found == {"batch": 7, "gradient_checkpointing": 1}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Capacity]:
    """The answer for batches of 2, 8 and 64 with ``size_of`` for estimates."""

    def answer(*sizes: float, size_of: Callable[[Any], int] = footprint, **options: Any) -> Capacity:
        def estimates(_: Any, workload: Any, listed: list[Configuration], *given: Any) -> list[EstimatePair]:
            raw = [MemoryEstimate("traced", context_bytes=size_of(trial.values)) for trial in listed]
            return list(map(EstimatePair, raw, raw))

        monkeypatch.setattr(EstimationService, "estimate_all", estimates)
        trials = [Trial(f"t{batch}", "toy", f"b{batch}", {"batch": batch, "epochs": 1}, 0) for batch in (2, 8, 64)]
        settings = Settings(auto_memory=True, gpu_memory_buffer_gb=2, **options)
        return capacity({"toy": TrainingTask(Batched(), None)}, trials, [int(size * GB) for size in sizes], settings)

    return answer


def test_a_card_is_planned_for_what_fits_on_it(made_up: Callable[..., Capacity]) -> None:
    small, middle, large = made_up(4, 16, 90).cards
    assert (small.workers, small.fitting, [misfit.name for misfit in small.misfits]) == (0, 0, ["b64", "b8", "b2"])
    assert (middle.workers, middle.workers_at_least, middle.footprint_bytes) == (2, 1, 10 * GB)
    assert (large.workers, large.fitting, large.misfits) == (3, 3, ())
    assert [card.workers for card in made_up(90, packing="uniform").cards] == [1]


def test_a_misfit_tells_its_change_with_what_it_takes_or_the_card_it_needs(made_up: Callable[..., Capacity]) -> None:
    found = made_up(4, 12.5)
    (large,) = found.cards[1].misfits
    assert (large.change, large.changed_need_bytes) == ({"accumulation": 8}, 10 * GB)
    text = capacity_text(found)
    assert "b64    66.00 GB: accumulation 8: 10.00 GB" in text
    assert "b2      4.00 GB: no accumulation, amp, checkpointing or smaller batch; a card of 6 GB" in text
    record = to_record(found)["cards"][1]["misfits"][0]  # type: ignore[index]
    assert (record["change"], record["changed_need_gb"]) == ({"accumulation": 8}, 10)


def test_each_configuration_is_estimated_once_for_all_cards(made_up: Callable[..., Capacity]) -> None:
    asked: list[Any] = []
    made_up(4, 5, 6, 7, size_of=lambda config: asked.append(dict(config)) or 10**12)
    assert len(asked) == 3 + 2, "as they are, and two batches of one, which are the same for all"


def test_the_guides_footprint_gives_its_table() -> None:
    cards = tuner.plan(mode="full", gpu="8,12,16,24,32,80", model_memory_gb=1.5).cards
    assert [card.workers for card in cards] == [4, 6, 9, 14, 20, 52]
    assert [card.budget_bytes / GB for card in cards] == [6, 10, 14, 22, 30, 78]


def test_a_given_footprint_that_does_not_fit_has_no_change() -> None:
    found = tuner.plan(gpu=[8], model_memory_gb=7)
    assert (found.cards[0].workers, found.cards[0].misfits[0].sought) == (0, False)
    advice = "8 GB: 2 do not fit: a card of 9 GB holds them; estimate their memory instead of giving it"
    assert advice in capacity_text(found)


@pytest.mark.parametrize(
    "gpu", ["0", [8, -1], "8,inf", "8,1e300", [10**400], "eight", [True], [float("nan")], "8,,9", "", [], 8]
)
def test_sizes_that_are_none_are_refused(gpu: Any) -> None:
    with pytest.raises(InputError, match=f"gpu={re.escape(repr(gpu))[:9]}.*: must be sizes in GB above 0"):
        card_sizes(gpu)


@pytest.mark.parametrize("other", [{"gpus": 2}, {"device_memory_gb": 8.0}, {"device": "cpu"}, {"like": "x"}])
def test_other_hardware_beside_it_is_refused(other: dict[str, Any]) -> None:
    name = next(iter(other))
    with pytest.raises(InputError, match=f"gpu and {name} were both given: leave one of them out"):
        tuner.plan(gpu="8", **other)


def test_the_command_prints_a_line_for_each_card_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    cards = json.loads(said(capsys, "plan", "--gpu", "3,8.5", "--model-memory-gb", "1.5", "--json"))["cards"]
    assert [(card["card_gb"], card["workers"], card["fitting"]) for card in cards] == [(3, 0, 0), (8.5, 4, 2)]


def test_choices_of_a_change_pass_the_checks_of_a_study() -> None:
    config = change(2.25)
    assert config is not None
    whole = {"batch": 8, **config}
    assert Selection(Batched(), lambda: None, [Configuration("x", whole)]).configurations
