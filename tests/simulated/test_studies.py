"""Thousands of simulated studies: seeds decide what happens, and after each event rules must hold that know no code.

``TUNER_SEED=1702 scripts/test tests/simulated/test_studies.py`` runs a single one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from tests.simulated.studies import run_study


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            run_study(seed)
        except Exception as error:
            raise AssertionError(f"the simulated study of seed {seed} failed: {error!r}") from error


def test_a_thousand_studies_keep_every_rule() -> None:
    run_all([int(os.environ["TUNER_SEED"])] if "TUNER_SEED" in os.environ else range(1000))


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 10_000, 1000))
def test_ten_thousand_studies_keep_every_rule(first: int) -> None:
    run_all(range(first, first + 1000))
