"""Which values go where in a file of configurations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.sizing.choices import Chosen
from tuner.sizing.config_edits.listed_configurations import SizedConfiguration, listed_values

CHOICES = {"a": (10, 2), "b": (4, 5), "hidden_dim=9": (6, 3)}
OWN = "configurations:\n- {name: a, batch_size: 1, accumulation: 1}\n"
THREE = OWN + "- {name: b}\n- {hidden_dim: 9}\n"


def sized(
    name: str, workload: str = "graphsage", lowered: tuple[str, ...] = (), **variables: int
) -> SizedConfiguration:
    batch, parts = CHOICES[name]
    return SizedConfiguration(
        workload, name, Chosen(name, batch, parts, 1, 1, "memory", "static", None, variables, lowered)
    )


def values(
    folder: Path, text: str, *given: SizedConfiguration, name: str = "own.yaml"
) -> tuple[Mapping[str, float], list[str]]:
    path = folder / name
    path.write_text(text)
    found = listed_values(path, "batch_size", given or [sized(each) for each in CHOICES])
    assert found is not None
    return found[0], [note.replace(str(path), name) for note in found[1]]


def test_an_entry_has_its_own_choice_and_the_defaults_the_smallest_of_the_others(tmp_path: Path) -> None:
    found, notes = values(tmp_path, THREE + "defaults: {batch_size: 1, accumulation: 1}\n")
    assert found == {
        "configurations.0.batch_size": 20,
        "configurations.0.accumulation": 2,
        "defaults.batch_size": 20,
        "defaults.accumulation": 5,
    }
    assert notes == ["own.yaml: defaults have the smallest batch of b, hidden_dim=9"]


def test_toml_entries_have_their_own_choices_too(tmp_path: Path) -> None:
    text = "[[configurations]]\nhidden_dim = 9\nbatch_size = 1\naccumulation = 1\n"
    mine = SizedConfiguration("graphsage", "hidden_dim=9,batch_size=1,accumulation=1", sized("a").chosen)
    found, notes = values(tmp_path, text, mine, name="own.toml")
    assert (found, notes) == ({"configurations.0.batch_size": 20, "configurations.0.accumulation": 2}, [])


def test_entries_that_were_not_sized_or_have_no_place_are_told(tmp_path: Path) -> None:
    found, notes = values(tmp_path, THREE, sized("a", n_negatives=3), sized("b"))
    assert found == {"configurations.0.batch_size": 20, "configurations.0.accumulation": 2}
    assert notes == [
        "not written: n_negatives 3 of a: own.yaml does not hold it",
        "not written: batch_size of b: own.yaml does not hold it",
        "own.yaml: not sized: hidden_dim=9, which keep what they have of their own",
    ]


def test_an_entry_of_several_workloads_has_the_smallest_batch_of_them(tmp_path: Path) -> None:
    small = SizedConfiguration("gt-ssl", "a", sized("b").chosen)
    assert values(tmp_path, OWN, sized("a"), small)[0]["configurations.0.accumulation"] == 5
    text = OWN.replace("name: a", "name: a, workload: graphsage")
    assert values(tmp_path, text, sized("a"), small)[0]["configurations.0.accumulation"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("configurations: [{name: a, batch_size: 1}]", "own.yaml: a: accumulation 2: .* nor defaults has a key"),
        (
            "configurations: [{name: a, batch_size: 1}, {name: b, batch_size: 1}]\ndefaults: {accumulation: 1}",
            "defaults.accumulation would have to be 2 for a, 5 for b: give each configuration one of its own",
        ),
        (
            "configurations: [&a {name: a, batch_size: 1, accumulation: 1}, {<<: *a, name: b}]",
            "configurations.1.batch_size comes by an alias: write it out",
        ),
    ],
)
def test_no_entry_has_a_batch_without_its_accumulation(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        values(tmp_path, text)


def test_a_number_that_was_lowered_must_be_written(tmp_path: Path) -> None:
    fewer = sized("a", lowered=("n_negatives",), n_negatives=3)
    with pytest.raises(InputError, match="a: n_negatives 3: the batch fits only with it"):
        values(tmp_path, OWN, fewer)
    assert values(tmp_path, OWN + "defaults: {n_negatives: 9}", fewer)[0]["defaults.n_negatives"] == 3


@pytest.mark.parametrize(
    "text",
    ["batch_size: 1", "grid: {hidden_dim: [9]}\ndefaults: {batch_size: 1}", "configurations: [{name: z}]", "["],
)
def test_other_files_are_not_files_of_the_configurations_that_were_sized(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.yaml").write_text(text)
    assert listed_values(tmp_path / "own.yaml", "batch_size", [sized("a")]) is None
