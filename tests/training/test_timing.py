from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

from tests.support.toy import Toy
from tuner.search.configurations import complete
from tuner.training.loop import LAUNCHED, Launching
from tuner.training.optimizers import build_optimizer
from tuner.training.rehearsal import STEPS, epoch_seconds
from tuner.workloads.base import Batch


class Counted(Toy):
    """Knows its 32 samples, of which a step takes 8; each look at the clock is a second."""

    name: ClassVar[str] = "counted"
    steps = 0

    def training_samples(self, data: Any) -> int:
        return 32

    def batches(self, config: Any, data: Any) -> Iterator[Batch]:
        for batch in super().batches(config, data):
            self.steps += 1
            yield batch


def timed(workload: Toy, **limits: float) -> float | None:
    config = complete({}, Toy.hyperparameters)
    model = workload.build_model(config, None)
    ticks = iter(range(100))
    optimizer = build_optimizer(workload, model, config)
    clock = lambda: float(next(ticks))  # noqa: E731
    return epoch_seconds(workload, model, optimizer, config, None, "cpu", clock=clock, **limits)


def test_an_epoch_takes_its_share_of_timed_steps_and_an_evaluation() -> None:
    workload = Counted()
    assert timed(workload, most_seconds=99) == pytest.approx(5), (
        "a second for each of four steps and for the evaluation"
    )
    assert workload.steps == 1 + STEPS, "a second epoch is begun where one is too short"


def test_slow_steps_are_timed_no_longer_than_needed() -> None:
    workload = Counted()
    assert timed(workload) == pytest.approx(5)
    assert workload.steps == 3


def test_nothing_is_timed_where_the_number_of_samples_is_unknown() -> None:
    weights = torch.get_rng_state()
    assert timed(Toy()) is None
    assert not torch.equal(torch.get_rng_state(), weights), "only the model was built"


def test_the_share_of_a_core_is_what_launching_the_first_steps_takes() -> None:
    wall, cpu = [0.0], [0.0]
    launching = Launching(lambda: wall[0], lambda: cpu[0])
    launching.begin()
    for step in range(10):
        wall[0] += 2.0
        cpu[0] += 0.5 if step <= LAUNCHED else 2.0  # from then on it waits for the GPU, spinning
        launching.step()
    assert launching.core_share() == 0.25


def test_an_epoch_of_a_few_steps_does_not_show_what_launching_takes() -> None:
    launching = Launching()
    launching.begin()
    launching.step()
    assert launching.core_share() is None
