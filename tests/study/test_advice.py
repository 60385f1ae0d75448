"""Advice on made-up figures: each sentence where its figures are, and none elsewhere."""

from __future__ import annotations

from typing import Any

from tests.support.attempts import attempt
from tuner import errors
from tuner.decisions.plan import make_plan
from tuner.errors import spelled
from tuner.records.attempts import Attempt
from tuner.spec.settings import Settings
from tuner.spec.spelling import in_terminal
from tuner.study.show import Figures, advise
from tuner.trial import GB, Device


def row(name: str, **others: Any) -> Attempt:
    base = {"trial_id": f"{name}-{others.get('seed', 0)}", "workload": "toy", "name": name, "seed": 0}
    figures = {"val_loss": 0.5, "best_epoch": 3, "epochs": 10, "duration_s": 5.0}
    memory = {"peak_memory_gb": 0.5, "estimated_memory_gb": 0.5, "limit_gb": 2.0}
    return attempt(**{**base, "status": "completed", **figures, **memory, **others})


def advice(
    *rows: Attempt,
    total_gb: float = 4,
    cores: int = 8,
    needs_gb: list[float] | None = None,
    attempts: list[Attempt] | None = None,
    in_python: bool = False,
    programs: tuple[str, ...] = (),
    **options: Any,
) -> list[str]:
    settings = Settings(**{"model_memory_gb": 2.0, **options} if not options.get("auto_memory") else options)
    device = Device("", "cpu", 0, "a device", int(total_gb * GB), int(total_gb * GB), cores)
    needs = [int(gb * GB) for gb in needs_gb or [settings.given_gb or 1.5] * len(rows)]
    most, packing = settings.max_workers, settings.packing_used
    plan = make_plan([device], needs, packing=packing, buffer_bytes=0, max_workers=most, adaptive=True)
    tried = attempts if attempts is not None else rows
    said = advise(Figures(rows, tried, plan, settings, programs))
    return [spelled(text, errors.in_python if in_python else in_terminal) for text in said]


ALIKE = [row(name) for name in "abcdef"]


def test_shares_that_peaks_do_not_fill() -> None:
    assert advice(*ALIKE) == [
        "peaks reached 25% of the shares: `--model-memory-gb 0.55` would run 6 instead of 2 at once"
    ]


def test_shares_are_left_alone_where_cores_or_the_user_allow_no_more() -> None:
    assert advice(*ALIKE, cores=2) == []
    assert advice(*ALIKE, max_workers=2) == []
    assert advice(*(row(name, peak_memory_gb=1.9) for name in "abcdef")) == []


def test_nothing_is_said_of_shares_where_a_configuration_has_no_peak() -> None:
    assert advice(*ALIKE, row("g", status="failed", peak_memory_gb=None)) == []


def test_trials_that_ran_out_of_memory_and_what_was_enough() -> None:
    failed = [row("a", status="out_of_memory", limit_gb=gb) for gb in (2.0, 3.0)]
    rows = [row("a", limit_gb=4.001), *ALIKE[1:]]
    assert advice(*rows, attempts=[*failed, *rows]) == [
        "1 trial ran out of memory 2 times, with 3.00 GB at most: `--model-memory-gb 4.01` was enough in the end"
    ]


def test_trials_that_were_given_up() -> None:
    whole = row("a", status="out_of_memory", limit_gb=4.0)
    assert advice(whole, *ALIKE[1:])[0].endswith("for 1: `--on-oom accumulate` halves them")
    assert advice(whole, *ALIKE[1:], on_oom="accumulate")[0].endswith(
        "without `--model-memory-gb` the need of each is estimated"
    )
    estimated = advice(whole, *ALIKE[1:], on_oom="accumulate", auto_memory=True)
    assert estimated[0].endswith("`--memory-estimation measured` measures a step of each instead")
    measured = {"auto_memory": True, "memory_estimation": "measured"}
    assert advice(whole, *ALIKE[1:], on_oom="accumulate", **measured) == []


def test_nothing_measures_a_step_of_a_function_or_halves_its_batch() -> None:
    ran_out, done = row("a", status="out_of_memory"), row("b", limit_gb=4.0)
    whole = row("a", status="out_of_memory", limit_gb=4.0)
    for options in ({"auto_memory": True}, {"memory_gb": 4.0}):
        tried = [ran_out, done] if "auto_memory" in options else [whole]
        shown = [done] if "auto_memory" in options else [whole]
        without: list[str] = advice(*shown, attempts=tried, needs_gb=[2.0], cores=1, **options)
        assert "measured" in without[0] or "accumulate" in without[0]
        assert advice(*shown, attempts=tried, needs_gb=[2.0], cores=1, programs=("toy",), **options) == []


def test_in_python_options_are_spelled_as_arguments() -> None:
    assert advice(*ALIKE, in_python=True)[0].split(": ")[1].startswith("`model_memory_gb=0.55` would run 6")
