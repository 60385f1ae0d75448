"""Configuration files that are made to be large are refused before they are expanded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.search.configurations import configurations, name_of, read_configs
from tuner.search.domains import is_recordable
from tuner.search.parsing import parse_file
from tuner.trial import MOST_NAME

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = [
    ("a.yaml", LAUGHS, "with its aliases it has more than 1,000,000 values"),
    ("a.yaml", "grid: &a [*a]", "with its aliases it has more than 1,000,000 values"),
    ("a.yaml", "grid: " + "[" * 2000 + "]" * 2000, "it is nested too deep$"),
    ("a.json", "[" * 100_000 + "]" * 100_000, "it is nested too deep$"),
    ("a.yaml", "lr: " + "9" * 401, r"a number of about 40\d digits is too large; give at most 1e\+300"),
    ("a.yaml", "lr: 0x" + "f" * 9000, "a number of about 108.. digits is too large"),
    ("a.json", '{"lr": [' + "9" * 401 + "]}", "a number of about 40. digits is too large"),
    ("a.toml", "lr = " + "9" * 401, "a number of about 40. digits is too large"),
    ("a.yaml", "configurations: [{lr: 0.1, lr: 0.2}]", "key 'lr' occurs twice; leave one of them out"),
    ("a.json", '{"grid": {"lr": 0.1, "lr": 0.2}}', "key 'lr' occurs twice; leave one of them out"),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_what_is_wrong_with_a_files_text_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=f"{name} cannot be parsed: {message}") as caught:
        parse_file(tmp_path / name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_aliases_and_merged_keys_that_mean_little_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- &a {lr: 1e-3, n: 1}\n- {<<: *a, n: 2}\n- *a\n")
    assert parse_file(tmp_path / "a.yaml") == [{"lr": 0.001, "n": 1}, {"lr": 0.001, "n": 2}, {"lr": 0.001, "n": 1}]


def test_a_grid_is_counted_before_it_is_made() -> None:
    grid = {f"k{number}": list(range(100)) for number in range(5)}
    with pytest.raises(InputError, match=r"config: a grid of 1e\+10 combinations; the most is 100,000: remove"):
        read_configs({"grid": grid})


def test_no_name_has_more_characters_than_tables_and_files_take() -> None:
    with pytest.raises(InputError, match=r"n{30}…: a name of 300 characters: give one of at most 200$"):
        configurations([{"name": "n" * 300, "lr": 1}], None)
    made = [name_of({f"key{number}": 0.001 for number in range(40)} | {"last": last}) for last in (1, 2)]
    assert len(made[0]) == MOST_NAME and made[0] != made[1]


def test_a_number_that_no_record_can_have_is_none() -> None:
    numbers = 1e300, 10**401, float("inf"), float("nan"), 1e301
    assert [*map(is_recordable, numbers)] == [True, False, False, False, False]
