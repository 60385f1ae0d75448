"""Errors name parameters, and whoever shows them spells these."""

from __future__ import annotations

import pickle

import pytest

from tuner.errors import InputError, ParameterError, option, printable, spelled, with_text
from tuner.spec.spelling import in_terminal


@pytest.mark.parametrize(
    ("parameter", "value", "python", "terminal"),
    [
        ("num_samples", 0, "num_samples=0", "--num-samples 0"),
        ("backoff", 1e9, "backoff=1e+09", "--backoff 1e+09"),
        ("mode", "quick", "mode='quick'", "--mode quick"),
        ("calibration", False, "calibration=False", "--no-calibration"),
        ("auto_memory", True, "auto_memory=True", "--auto-memory"),
        ("overrides", "lr=1", "overrides='lr=1'", "--set lr=1"),
        ("like", "{a}/b", "like='{a}/b'", "--like {a}/b"),
    ],
)
def test_a_parameter_is_spelled_for_its_reader(parameter: str, value: object, python: str, terminal: str) -> None:
    error = ParameterError(parameter, value, "must be another", f"lower {option('max_workers')}")
    assert str(error) == f"{python}: must be another: lower max_workers"
    assert error.told(in_terminal) == f"{terminal}: must be another: lower --max-workers"


def test_an_error_in_another_keeps_its_parameters_for_the_reader() -> None:
    inner = ParameterError("threads", 0, "must be at least 1")
    assert InputError(f"t001: {inner.text}").told(in_terminal) == "t001: --threads 0: must be at least 1"


def test_an_error_of_a_parameter_can_come_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(ParameterError("threads", 0, "must be at least 1")))  # noqa: S301
    assert (error.parameter, error.value, error.rule, str(error)) == (
        "threads",
        0,
        "must be at least 1",
        "threads=0: must be at least 1",
    )


def test_a_text_without_parameters_stays_as_it_is() -> None:
    assert spelled("50 % of {x}") == "50 % of {x}"


def test_an_exception_that_cannot_go_to_another_process_goes_as_its_text() -> None:
    class Local(Exception):
        pass

    assert str(with_text(Local("no\nroom"))) == "Local: no room"
    error = KeyError("known")
    assert with_text(error) is error


def test_a_printed_text_has_nothing_that_a_terminal_obeys() -> None:
    assert printable("a\x1b]0;title\x07\r\x9b2J\u202eb\n\tc ⌊×⌋…") == "a?]0;title???2J?b\n\tc ⌊×⌋…"
    assert printable("x" * 500, 10) == "x" * 9 + "…"
