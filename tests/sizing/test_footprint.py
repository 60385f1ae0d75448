"""Footprints of models that are not at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.sizing.footprint import Footprint, read_footprint
from tuner.trial import GB

TEXT = """
name = "a model"
batch = "batch_size"
max_batch_size = 64
[variables]
tokens = 512
[keys]
batch_size = "data.batch_size"
accumulation = "accumulate"
[[terms]]
part = "weights"
gb = 1.5
[[terms]]
part = "activations"
gb = 0.001
times = ["batch_size", "tokens"]
[stages."02-03"]
tokens = 256
"""


def read(folder: Path, text: str) -> Footprint:
    path = folder / "own.toml"
    path.write_text(text)
    return read_footprint(path)


def test_the_sum_of_terms_is_the_need(tmp_path: Path) -> None:
    found = read(tmp_path, TEXT)
    assert found.need_bytes({"batch_size": 2, "tokens": 100}) == round(1.7 * GB)
    assert found.need_bytes({"batch_size": 2}) == round(1.5 * GB) + round(1.024 * GB)
    assert found.need_bytes({"batch_size": 2, **found.stages["02-03"]}) == round(1.5 * GB) + round(0.512 * GB)


@pytest.mark.parametrize(
    ("batch", "stage", "gb"),
    [(45, "01", 19.8), (64, "01", 26.5), (82, "01", 33.9), (128, "01", 51.5), (128, "02-05", 21.4)],
)
def test_the_contrastive_encoder_is_the_guides(batch: int, stage: str, gb: float) -> None:
    found = read_footprint("contrastive-encoder")
    values = {"batch_size": batch, **found.stages[stage]}
    assert found.need_bytes(values) / GB == pytest.approx(gb, rel=0.03)
    assert found.formula() == "2.7 + 0.0293 · batch_size + 0.01465 · batch_size · n_negatives"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("max_batch_size = 64", "max_batch = 64", r"unknown key 'max_batch' \(did you mean max_batch_size\?\)"),
        ("max_batch_size = 64", "max_batch_size = 0", "max_batch_size is 0; expected greater than or equal to 1"),
        ("max_batch_size = 64", "batch_is_step = 1", "batch_is_step is 1; expected a valid boolean"),
        ('name = "a model"', "", "has no name"),
        ('name = "a model"', "name = 3", "name is 3; expected a valid string"),
        ('name = "a model"', f'name = "{"n" * 201}"', "name is 'n*...n*'; .* at most 200 characters"),
        ('batch = "batch_size"', 'batch = "batchsize"', "unknown variable 'batch_size' in times"),
        ('batch = "batch_size"', 'batch = "tokens2"', "unknown variable 'batch_size' in times"),
        ('times = ["batch_size", "tokens"]', 'times = ["tokens"]', "batch 'batch_size': expected a variable in the"),
        ('"tokens"]', '"token"]', r"unknown variable 'token' in times \(did you mean tokens\?\)"),
        ('times = ["batch_size", "tokens"]', 'times = "batch_size"', "terms.1.times is 'batch_size'; expected"),
        ("gb = 1.5", "gb = -1.5", "terms.0.gb is -1.5; expected a finite number of 0 or more"),
        ("gb = 1.5", "gb = " + "9" * 401, "terms.0.gb is 9*...9*; expected a finite number"),
        ("gb = 1.5", "gb = nan", "terms.0.gb is nan; expected a finite number"),
        ("gb = 1.5", "", "has no terms.0.gb"),
        ("gb = 1.5", "gb = 1.5\nsize = 2", r"unknown key 'size' \(known are gb, part, times\)"),
        ("tokens = 256", "batch_size = 2", "batch_size is chosen, and the same for all stages: leave it out"),
        ("tokens = 512", "accumulation = 2", "accumulation is chosen, and the same for all stages: leave it out"),
        ("02-03", "late", "stage 'late': expected numbers of its own, such as 01 or 02-05"),
        ("02-03", "03-02", "stage '03-02': expected numbers of its own"),
        ('[stages."02-03"]', "[stages]\n3 = {tokens = 1}\n[stages.02-03]", "stage '02-03': expected numbers of its"),
        ("accumulation =", "acumulation =", r"'acumulation' in \[keys\] \(did you mean accumulation\?\)"),
        ("[[terms]]", "[terms]", "is not TOML"),
        ("gb = 1.5", f"gb = {'[' * 3000}", "is not TOML: maximum recursion depth exceeded"),
        ("gb = 1.5", "gb = = 1.5", r"is not TOML: Invalid value \(at line 12, column 6\)"),
    ],
)
def test_a_fault_of_a_file_is_told_in_one_line(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in TEXT
    with pytest.raises(InputError, match=f"own.toml: (.*{fault})") as caught:
        read(tmp_path, TEXT.replace(old, new))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(
        InputError, match=r"footprint contrastiv: there is no such file; .* one of .*contrastive_encoder"
    ):
        read_footprint("contrastiv")


def test_a_variable_of_one_stage_needs_a_value_elsewhere(tmp_path: Path) -> None:
    found = read(tmp_path, TEXT.replace("[variables]\ntokens = 512\n", ""))
    assert found.need_bytes({"batch_size": 1, **found.stages["02-03"]}) == round(1.5 * GB) + round(0.256 * GB)
    with pytest.raises(InputError, match="tokens has no value: give it one"):
        found.need_bytes({"batch_size": 1})
    with pytest.raises(InputError, match="the footprint is infinite"):
        found.need_bytes({"batch_size": 1e300, "tokens": 1e300})
