"""Batch, accumulation and numbers of pairs, from sizes alone."""

from __future__ import annotations

import pytest

from tuner.errors import spelled
from tuner.sizing.choices import Chosen, Goal, accumulation_for, explanations


@pytest.mark.parametrize(
    ("batch", "devices", "accumulation"), [(45, 1, 5), (64, 1, 4), (82, 1, 3), (128, 1, 2), (128, 2, 1), (300, 1, 1)]
)
def test_accumulation_is_what_the_target_has_room_for_and_never_less_than_one(batch, devices, accumulation) -> None:
    assert accumulation_for(batch, devices, 256) == accumulation


def chosen(**values) -> Chosen:
    parts = {"name": "a", "batch_size": 300, "accumulation": 1, "devices": 1, "need_bytes": 1, "stopped_by": "memory"}
    return Chosen(**{**parts, "method": "footprint", **values})


def test_a_batch_above_the_target_names_the_remedy() -> None:
    goal = Goal(2**30, effective_batch=256, devices=2)
    (_, text) = map(spelled, explanations(chosen(devices=2), goal, {}))
    assert text == "a: no accumulation, as a step of 600 is above the 256 wanted: max_batch_size=128 keeps to it"


def test_every_choice_is_explained() -> None:
    mine = chosen(
        batch_size=8, accumulation=4, beyond_bytes=2**31, variables={"n_negatives": 3}, lowered=("n_negatives",)
    )
    assert explanations(mine, Goal(2**30, effective_batch=33), {"n_negatives": 24}) == [
        "a: n_negatives 3 instead of 24, the most with which a batch of 1 fits",
        "a: batch 8, as 9 would take 2.000 GB, more than 1.000 GB",
        "a: 4 batches of 8 for each optimizer step, which makes 32 of the 33 wanted",
    ]
