"""What the stages of a footprint's curriculum are to be trained with."""

from __future__ import annotations

import pytest

from tuner.errors import InputError
from tuner.sizing.choices import DoesNotFit, Goal
from tuner.sizing.footprint import Footprint, read_footprint
from tuner.sizing.stages import size_stages, stages_of
from tuner.trial import GB

ENCODER = read_footprint("contrastive_encoder")


def sized(total_gb: float, footprint: Footprint = ENCODER, **goal):
    return size_stages(footprint, stages_of(footprint, ()), Goal(int(0.85 * total_gb * GB), **goal))


@pytest.mark.parametrize(
    ("total_gb", "batch", "accumulation", "memory_gb"),
    [(23.6, 45, 5, 19.8), (24, 46, 5, 19.8), (32, 64, 4, 26.5), (40, 82, 3, 33.9), (80, 128, 2, 51.5)],
)
def test_the_guides_table_follows_from_its_formula(total_gb, batch, accumulation, memory_gb) -> None:
    first, later = sized(total_gb)
    assert (first.batch_size, first.accumulation) == (later.batch_size, later.accumulation) == (batch, accumulation)
    assert first.need_bytes / GB == pytest.approx(memory_gb, rel=0.03)
    assert first.variables == {"n_positives": 32, "n_negatives": 24}
    assert later.variables == {"n_positives": 16, "n_negatives": 8}


def test_later_stages_take_less_with_the_same_batch() -> None:
    first, later = sized(80)
    assert later.need_bytes / GB == pytest.approx(21.4, rel=0.005)
    assert {first.stopped_by, later.stopped_by} == {"the footprint's max_batch_size"}
    assert [stage.stopped_by for stage in sized(32)] == ["memory", "stage 01"]


def test_a_stage_that_does_not_fit_has_fewer_negatives() -> None:
    first, later = sized(3.3)
    assert (first.batch_size, first.variables["n_negatives"], later.variables["n_negatives"]) == (1, 5, 5)
    assert first.lowered == later.lowered == ("n_negatives",)
    assert first.need_bytes <= 0.85 * 3.3 * GB < ENCODER.need_bytes({"batch_size": 1, "n_negatives": 6})


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    with pytest.raises(
        DoesNotFit, match=r"stage 01: a batch of 1 takes 3\.08 GB, 0\.53 GB more than the 2\.55"
    ) as raised:
        sized(3)
    assert "it fits a device of 3.62 GB; with n_negatives 1 it fits one of 3.23 GB" in str(raised.value)
    first, _ = sized(3.63)
    assert first.lowered == ()
    first, _ = sized(3.24)
    assert first.variables["n_negatives"] == 1


def test_the_smallest_batch_and_the_devices_count() -> None:
    first, _ = sized(80, min_batch_size=100, max_batch_size=120, devices=2, effective_batch=512)
    assert (first.batch_size, first.stopped_by, first.accumulation) == (120, "max_batch_size", 2)
    assert first.effective_batch == 480


def plain(gb: float) -> Footprint:
    terms = [{"part": "all", "gb": gb, "times": ["batch"]}]
    return Footprint.model_validate({"name": "plain", "batch": "batch", "terms": terms})


def test_a_footprint_without_stages_is_one_row() -> None:
    (row,) = sized(10, plain(gb=1))
    assert (row.name, row.batch_size, row.beyond_bytes) == ("plain", 8, 9 * GB)
    (row,) = sized(10, plain(gb=1 / GB))
    assert row.stopped_by == "the search"


def test_variables_can_be_set_but_not_the_batch() -> None:
    assert stages_of(ENCODER, ["n_negatives=4"])["01"] == {"n_positives": 32, "n_negatives": 4}
    with pytest.raises(InputError, match="overrides='batch_size=4': batch_size is the batch, which is chosen"):
        stages_of(ENCODER, ["batch_size=4"])
    with pytest.raises(InputError, match="overrides='n_negatives=many': expected VARIABLE=NUMBER"):
        stages_of(ENCODER, ["n_negatives=many"])
    with pytest.raises(InputError, match="no such variable: did you mean n_negatives"):
        stages_of(ENCODER, ["n_negative=4"])


PAIRS = Footprint.model_validate(
    {
        "name": "pairs",
        "batch": "batch",
        "variables": {"n_negatives": 24, "n_positives": 32, "idle": 1},
        "terms": [
            {"part": "fixed", "gb": 100 / GB, "times": ["batch"]},
            {"part": "negatives", "gb": 10 / GB, "times": ["n_negatives"]},
            {"part": "positives", "gb": 3 / GB, "times": ["n_positives"]},
        ],
    }
)


@pytest.mark.parametrize(
    ("limit", "lowered"),
    [
        (436, {}),
        (435, {"n_negatives": 23}),
        (206, {"n_negatives": 1}),
        (205, {"n_negatives": 1, "n_positives": 31}),
        (113, {"n_negatives": 1, "n_positives": 1}),
    ],
)
def test_negatives_are_lowered_as_little_as_can_be_and_positives_only_after_them(limit, lowered) -> None:
    (row,) = size_stages(PAIRS, stages_of(PAIRS, ()), Goal(limit, max_batch_size=1))
    assert {name: row.variables[name] for name in row.lowered} == lowered
    assert row.need_bytes <= limit


def test_with_the_fewest_pairs_too_it_may_not_fit() -> None:
    with pytest.raises(DoesNotFit, match="with n_negatives 1 and n_positives 1 it fits one of"):
        size_stages(PAIRS, stages_of(PAIRS, ()), Goal(112))
