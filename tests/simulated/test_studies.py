"""Thousands of simulated studies: seeds decide what happens, and after each event rules must hold that know no code.

``TUNER_SEED=1702 scripts/test tests/simulated/test_studies.py`` runs a single one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import get_args

import pytest

from tests.simulated.studies import run_study
from tuner.decisions import events

# A search and a number of trials at once that changes have tests of their own.
SEEN = {*get_args(events.Event)} - {events.Planned, events.Dropped, events.Allowed}


def run_all(seeds: Iterable[int]) -> set[type]:
    """Runs the studies of these seeds; returns the kinds of events that there were."""
    seen: set[type] = set()
    for seed in seeds:
        try:
            seen |= run_study(seed).seen
        except Exception as error:
            raise AssertionError(f"the simulated study of seed {seed} failed: {error!r}") from error
    return seen


def test_a_thousand_studies_keep_every_rule() -> None:
    if "TUNER_SEED" in os.environ:
        run_all([int(os.environ["TUNER_SEED"])])
    else:
        assert run_all(range(1000)) == SEEN, "the world has become too tame"


@pytest.mark.long
@pytest.mark.parametrize(
    "first", [1000, *(pytest.param(first, marks=pytest.mark.slow) for first in range(2000, 10_000, 1000))]
)
def test_ten_thousand_studies_keep_every_rule(first: int) -> None:
    run_all(range(first, first + 1000))
