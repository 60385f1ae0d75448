"""One declaration of an option makes its checks, its signature and its docstring."""

from __future__ import annotations

import inspect
from typing import ClassVar

import pytest

from tuner.errors import InputError, ParameterError, option
from tuner.spec.options import Options, Terminal, Texts, field, public
from tuner.spec.settings import Settings


class Common(Options, title="Common"):
    """A group."""

    seed: int = field(0, "The seed.", Terminal("N"), ge=0)


class Example(Common, title="Own"):
    """A command."""

    positional: ClassVar[tuple[str, ...]] = ("labels",)

    labels: Texts = field((), "Names.", Terminal("NAME", unset=f"those of {option('seed')}"))
    share: float | None = field(None, "A share.", gt=0, le=1)


@public(Example)
def example(options: Example) -> dict[str, object]:
    """Does something.

    Returns:
        What was given.
    """
    return options.given()


def test_a_function_takes_each_option_and_other_code_all_as_one_object() -> None:
    assert example(["a"], seed=2) == example.of(Example(labels=["a"], seed=2)) == {"seed": 2, "labels": ("a",)}
    assert str(inspect.signature(example)).startswith("(labels: 'Sequence[str]' = (), *, seed: 'int' = 0, share:")
    with pytest.raises(TypeError, match="unexpected keyword argument 'sead'"):
        example(sead=1)


def test_the_docstring_has_the_options_before_what_is_returned() -> None:
    expected = (
        "Args:\n    labels: Names. By default those of seed.\n    seed: The seed.\n    share: A share.\n\nReturns:"
    )
    assert expected in (example.__doc__ or "")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": -1}, "seed=-1: must be at least 0"),
        ({"seed": True}, "seed=True: must be a whole number"),
        ({"seed": 1.5}, "seed=1.5: must be a whole number"),
        ({"share": 0}, "share=0: must be more than 0"),
        ({"share": 2}, "share=2: must be at most 1"),
        ({"share": float("nan")}, "share=nan: must be a finite number"),
        ({"share": "half"}, "share='half': must be a number"),
    ],
)
def test_a_value_that_breaks_its_rule_is_one_line(given: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=f"^{message}$"):
        Example.of(given)


def test_groups_stand_in_their_order_and_know_their_titles() -> None:
    assert Example.titles() == {"seed": "Common", "labels": "Own", "share": "Own"}


def test_what_is_changed_counts_as_given_and_is_checked() -> None:
    changed = Settings(seed=0).changed(max_workers=2)
    assert changed.given() == {"seed": 0, "max_workers": 2}
    assert changed.changes() == {"max_workers": 2}
    with pytest.raises(InputError, match="max_workers=0: must be at least 1"):
        changed.changed(max_workers=0)
