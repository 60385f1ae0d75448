"""Thousands of simulated studies: seeds decide what happens, and after each event rules must hold that know no code.

``TUNER_SEED=1702 scripts/test tests/simulated/test_studies.py`` runs a single one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import get_args

import pytest

from tests.simulated.studies import run_study
from tests.simulated.whole import run_whole
from tuner.decisions import events

SEEN = {*get_args(events.Event)}
EVERY = 10  # which study is a whole one


def run_all(seeds: Iterable[int]) -> set[type]:
    """Runs the studies of these seeds; returns the kinds of events that there were."""
    seen: set[type] = set()
    for seed in seeds:
        try:
            whole = seed % EVERY == EVERY - 1
            seen |= (run_whole(seed // EVERY) if whole else run_study(seed)).seen
        except Exception as error:
            raise AssertionError(f"the simulated study of seed {seed} failed: {error!r}") from error
    return seen


def test_hundreds_of_studies_keep_every_rule() -> None:
    if "TUNER_SEED" in os.environ:
        run_all([int(os.environ["TUNER_SEED"])])
    else:
        assert run_all(range(500)) == SEEN, "the world has become too tame"


@pytest.mark.long
@pytest.mark.parametrize(
    "first", [500, *(pytest.param(first, marks=pytest.mark.slow) for first in range(1500, 20_000, 1000))]
)
def test_twenty_thousand_studies_keep_every_rule(first: int) -> None:
    run_all(range(first, first + 1000))
