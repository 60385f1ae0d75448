"""Footprints of models that are not at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.sizing.footprints.footprint import Footprint, Term, read_footprint, write_footprint
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
    assert found.parts({"batch_size": 2, "tokens": 100}) == {"weights": round(1.5 * GB), "activations": round(GB / 5)}
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
    assert found.formula() == "2.7 + batch_size · (0.0293 + 0.01465 · n_negatives)"
    assert {part: round(size / GB, 2) for part, size in found.parts(values).items() if part != "activations"} == {
        "parameters": 0.2,
        "gradients": 0.2,
        "optimizer": 0.8,
        "overhead": 1.5,
    }


def test_like_products_are_one_in_the_formula() -> None:
    terms = (Term("a", GB, ("b", "b", "n")), Term("c", GB, ("b",)), Term("d", GB, ("n",)), Term("e", GB / 2, ("n",)))
    assert Footprint("x", terms, {}, "b").formula() == "1.5 · n + b · (1 · b · n + 1)"
    assert Footprint("x", terms[:1], {}, "b").formula() == "b · 1 · b · n"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    found = read_footprint("contrastive_encoder")
    write_footprint(found, path)
    assert read_footprint(path) == replace(found, source=str(path))
    write_footprint(Footprint("x", (Term("a", GB, ("b",)),), {}, "b"), path, overwrite=True)
    assert path.read_text() == 'name = "x"\nbatch = "b"\n\n[[terms]]\npart = "a"\ngb = 1.0\ntimes = ["b"]\n'


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    found = read(tmp_path, TEXT)
    with pytest.raises(InputError, match=r"own.toml: already exists; give another name, or overwrite=True"):
        write_footprint(found, path)
    assert path.read_text() == TEXT
    with pytest.raises(InputError, match=r"none/x.toml: cannot be written: No such file or directory"):
        write_footprint(found, tmp_path / "none" / "x.toml")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("max_batch_size = 64", "max_batch = 64", r"unknown key 'max_batch' \(did you mean max_batch_size\?\)"),
        ("max_batch_size = 64", "max_batch_size = 0", "max_batch_size = 0: must be a whole number of at least 1"),
        ("max_batch_size = 64", "max_batch_size = true", "max_batch_size = True: must be a whole number"),
        ('name = "a model"', "", "name is missing"),
        ('name = "a model"', "name = 3", "name = 3: must be text"),
        ('name = "a model"', f'name = "{"n" * 201}"', "name: has 201 characters; 200 are the most"),
        ('batch = "batch_size"', "", "batch is missing"),
        ('batch = "batch_size"', 'batch = "batchsize"', "term 2: unknown variable 'batch_size' in times"),
        ('times = ["batch_size", "tokens"]', 'times = ["tokens"]', r"batch = 'batch_size': no term has it .*tokens"),
        ('"tokens"]', '"token"]', r"term 2: unknown variable 'token' in times \(did you mean tokens\?\)"),
        ('times = ["batch_size", "tokens"]', 'times = [["tokens"]]', "term 2: unknown variable"),
        ('times = ["batch_size", "tokens"]', 'times = "batch_size"', "term 2: times = 'batch_size': must be a list"),
        ("gb = 1.5", "gb = -1.5", "term 1: gb = -1.5: must be a finite number of 0 or more"),
        ("gb = 1.5", "gb = " + "9" * 401, "term 1: gb = 9{40}: must be a finite number of 0 or more, at most 1e"),
        ("gb = 1.5", "gb = nan", "term 1: gb = nan: must be a finite number"),
        ("gb = 1.5", 'gb = "1.5"', "term 1: gb = '1.5': must be a number"),
        ("gb = 1.5", "", "term 1: gb is missing"),
        ("gb = 1.5", "gb = 1.5\nsize = 2", r"term 1: unknown key 'size' \(known are gb, part, times\)"),
        ("tokens = 512", "tokens = true", r"\[variables\]: tokens = True: must be a number"),
        ("tokens = 256", "batch_size = 2", "stage '02-03': batch_size is the batch"),
        ("tokens = 512", "batch_size = 2", r"\[variables\]: batch_size is the batch, which is chosen for all stages"),
        ("tokens = 512", "accumulation = 2", r"\[variables\]: accumulation is chosen, and no variable of the memory"),
        ("tokens = 256", "accumulation = 2", "stage '02-03': accumulation is chosen, and no variable of the memory"),
        ('batch = "batch_size"', 'batch = "accumulation"', "batch = 'accumulation': is the number of batches in a"),
        ("max_batch_size = 64", "batch_is_step = 1", "batch_is_step = 1: must be true or false"),
        ("tokens = 256", "tokens = -1", "stage '02-03': tokens = -1: must be a finite number"),
        ("02-03", "late", "stage 'late': must be a number or a range of them, such as 01 or 02-05"),
        ("02-03", "03-02", "stage '03-02': must be a number or a range"),
        (
            '[stages."02-03"]',
            "[stages]\n3 = {tokens = 1}\n[stages.02-03]",
            "stage '02-03': another stage has some of",
        ),
        (
            "accumulation =",
            "acumulation =",
            r"\[keys\]: unknown variable 'acumulation' \(did you mean accumulation\?\)",
        ),
        ('"accumulate"', "3", r"\[keys\]: accumulation = 3: must be text"),
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


@pytest.mark.parametrize("text", ["terms = []", "terms = 3", "terms = [3]"])
def test_terms_are_a_list_of_tables(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"terms: must be a list|term 1: must be a table, not 3"):
        read(tmp_path, f'name = "x"\nbatch = "b"\n{text}')


def test_a_file_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"footprint contrastiv: there is no such file; .* one of .*contrastive_encoder"
    ):
        read_footprint("contrastiv")
    with pytest.raises(InputError, match="is a folder"):
        read_footprint(tmp_path)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"batch_size": -1}, "batch_size = -1: must be a finite number of 0 or more"),
        ({"batch_size": True}, "batch_size = True: must be a number"),
        ({"batch_size": 1, "token": 3}, r"no variable is called 'token' \(did you mean tokens\?\)"),
        ({}, r"batch_size has no value: give it one, or add it to \[variables\]"),
        ({"batch_size": 1e300, "tokens": 1e300}, "the footprint is infinite"),
    ],
)
def test_values_are_checked(tmp_path: Path, values: dict[str, float], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        read(tmp_path, TEXT).need_bytes(values)


def test_a_variable_of_one_stage_needs_a_value_elsewhere(tmp_path: Path) -> None:
    found = read(tmp_path, TEXT.replace("[variables]\ntokens = 512\n", ""))
    assert found.need_bytes({"batch_size": 1, **found.stages["02-03"]}) == round(1.5 * GB) + round(0.256 * GB)
    with pytest.raises(InputError, match="tokens has no value"):
        found.need_bytes({"batch_size": 1})
