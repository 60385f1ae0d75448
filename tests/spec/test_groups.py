"""Times and what else an option's type makes of what is given."""

from __future__ import annotations

import pytest

from tuner.errors import InputError
from tuner.spec.groups import parse_seconds
from tuner.spec.settings import Settings


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5h", 5400), ("45", 45), (45.5, 45.5), (" 1 m", 60)],
        *[("1h30m", 5400), ("1h 30m 5s", 5405), ("2m1.5s", 121.5)],
    ],
)
def test_times_are_read(text: str | float, seconds: float) -> None:
    assert parse_seconds(text, "time_limit") == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-5", "1d", "half an hour", "1h30", "30m1h", "h", "nan", "inf", True, -3, "9" * 400]
)
def test_other_times_are_refused(text: str | float) -> None:
    with pytest.raises(InputError, match=f"time_limit={text!r}: must be a time above 0: seconds, or numbers with"):
        Settings(time_limit=text).check()


def test_a_trials_timeout_is_read_like_a_limit_of_time() -> None:
    assert Settings(trial_timeout="10m").trial_timeout_seconds == 600
    assert Settings().trial_timeout_seconds is None
    with pytest.raises(InputError, match="trial_timeout='soon': must be a time above 0"):
        Settings(trial_timeout="soon")
