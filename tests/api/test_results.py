"""Studies that have ended or still run, read and shown side by side."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tuner
from tests.support.attempts import attempt
from tests.support.commands import refused, said
from tuner.api.results import Comparison, side_by_side
from tuner.cli.print_results import print_results
from tuner.errors import InputError
from tuner.objective import Objective
from tuner.records.attempts import to_csv
from tuner.records.read_studies import read_studies
from tuner.spec.commands import ResultsOptions
from tuner.spec.settings import Settings
from tuner.spec.stored_options import to_stored

FIXED = {
    "workload": "graphsage",
    "seed": 0,
    "status": "completed",
    "attempts": 1,
    "epochs": 3,
    "duration_s": 1.5,
    "device": "cpu",
    "gpu_fraction": 0.25,
    "estimated_memory_gb": 0.5,
    "peak_memory_gb": 0.4,
    "error": "",
    "limit_gb": 0.6,
    "lost": "",
}


def trial(number: int, **values: Any) -> dict[str, Any]:
    """A line of a journal; ``val`` is its metric, and what is in capitals a hyperparameter."""
    metric = {"val_rmse": values.pop("val")} if "val" in values else {}
    config = {f"config/{key.lower()}": values.pop(key) for key in list(values) if key.isupper()}
    return {"trial_id": f"t{number}", "name": f"n{number}", **FIXED, **metric, **values, **config}


def study(path: Path, *rows: dict[str, Any], **about: Any) -> Path:
    path.mkdir(parents=True)
    (path / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    described = {"workload": "graphsage", "options": to_stored(Settings()), "plan": {"threads": 2}, **about}
    (path / "study.json").write_text(json.dumps(described))
    return path


def csv_of(*rows: dict[str, Any]) -> str:
    return to_csv([attempt(**row) for row in rows])


def table(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(csv_of(*rows))
    return path


def compared(*paths: Path | str, **asked: Any) -> Comparison:
    return side_by_side(ResultsOptions.of({"paths": paths, **asked}))


def names(found: Comparison) -> list[str]:
    return [row.name for row in found.shown]


def text(found: Comparison, width: int | None = None) -> list[str]:
    """What is printed: in a pipe, or on a terminal of so many characters."""
    console = Console(file=io.StringIO(), width=width or 60, force_terminal=bool(width), color_system=None)
    print_results(console, found)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A study of three trials: the second is the best, the third failed."""
    rows = [trial(1, val=0.9, LR=0.1), trial(2, val=0.8, LR=0.2), trial(3, LR=0.3, status="failed", error="E: no")]
    return study(tmp_path / "one", *rows)


def test_a_trials_latest_attempt_counts_and_half_a_line_is_left_out(tmp_path: Path) -> None:
    first, second = trial(1, status="out_of_memory"), trial(1, val=0.5, attempts=2)
    path = study(tmp_path / "s", first, trial(2, val=0.7), second)
    with (path / "attempts.jsonl").open("a") as file:
        file.write('{"trial_id": "t3", "sta')
    found = compared(path)
    assert names(found) == ["n1", "n2"]
    assert found.notes == [f"{path / 'attempts.jsonl'}: line 4 is incomplete; left out"]


def test_rows_are_chosen_sorted_and_cut(one: Path) -> None:
    assert names(compared(one)) == ["n2", "n1", "n3"]
    assert names(compared(one, sort=["-lr"], where=["lr>0.1"])) == ["n3", "n2"]
    assert names(compared(one, sort="lr", top=1)) == ["n1"]
    assert names(compared(one, where=['error!=""', "status~fail"])) == ["n3"]
    assert names(compared(one, where='error!="" and status~fail')) == ["n3"]
    with pytest.raises(InputError, match="top=0: must be at least 1"):
        compared(one, top=0)


def test_a_folder_of_studies_stands_for_them_and_none_counts_twice(one: Path, tmp_path: Path) -> None:
    study(tmp_path / "two", trial(1, val=0.85))
    found = compared(tmp_path, one, one / ".." / "one")
    assert [(row.study, row.name) for row in found.shown] == [
        ("one", "n2"),
        ("two", "n1"),
        ("one", "n1"),
        ("one", "n3"),
    ]


def test_without_a_path_it_is_the_study_that_was_begun_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^results/ holds no study: run one, or"):
        read_studies([])
    for name, begun in (("b", 2), ("c", 3), ("a", 1)):
        os.utime(study(tmp_path / "results" / name, trial(1)) / "study.json", (begun, begun))
    assert [found.path for found in read_studies([])[0]] == [Path("results/c")]


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["20260101-01-graphsage-quick", "20260101-02-graphsage-quick"], ["01", "02"]),
        (["20260101-01-graphsage-quick", "20260102-01-graphsage-quick"], ["20260101", "20260102"]),
        (["run", "run-2"], ["run", "run-2"]),
        (["x/same", "y/same"], ["x", "y"]),
        (["long-name-of-one"], ["long-name-of-one"]),
    ],
)
def test_studies_are_called_by_what_tells_their_folders_apart(
    tmp_path: Path, folders: list[str], expected: list[str]
) -> None:
    paths = [study(tmp_path / folder, trial(1)) for folder in folders]
    assert list(compared(*paths).studies) == expected


def test_a_table_alone_is_read_as_the_study_it_was_written_of(one: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (one / "attempts.jsonl").read_text().splitlines()]
    rows[0]["name"] = "007"  # a name, though it looks like a number
    found = compared(table(tmp_path / "alone.csv", *rows))
    assert names(found) == ["n2", "007", "n3"]
    assert [row.value("val_rmse") for row in found.shown] == [0.8, 0.9, None]
    assert [row.config["lr"] for row in found.shown] == [0.2, 0.1, 0.3]
    assert list(found.columns) == ["study", *list(compared(one).columns)[1:]]


def test_the_csv_of_several_studies_is_read_back_as_several(one: Path, tmp_path: Path) -> None:
    from tuner.records.attempts import write_rows

    found = compared(one, study(tmp_path / "two", trial(1, val=0.85)))
    (tmp_path / "both.csv").write_text(write_rows(found.records(), found.names))
    assert compared(tmp_path / "both.csv").records() == found.records()


def test_a_results_csv_in_a_studys_folder_stands_for_the_folder(one: Path) -> None:
    (one / "results.csv").write_text("not looked at")
    found = compared(one / "results.csv")
    assert names(found) == ["n2", "n1", "n3"]
    assert found.notes == [f"{one / 'results.csv'}: read from the attempts.jsonl beside it"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "is not a table of tuner: it has no column trial_id, workload, name"),
        ("", "it is empty; give the results.csv of a study, or its folder$"),
        (csv_of(trial(1)).replace(",error", ",eror"), "it has no column error$"),
        (csv_of(trial(1)) + "t2,graphsage\n", "line 3: has 2 fields, but there are 14 columns"),
        (csv_of(trial(1)).replace(",3,1.5,", ",many,1.5,"), "line 2: epochs is 'many'; expected a valid integer"),
        (csv_of(trial(1, val=0.5)).replace("0.5,", "low,", 1), "line 2: val_rmse is 'low'; expected a number"),
        (csv_of(trial(1)).replace("error\n", "error,seed\n"), "it has the column seed more than once"),
        (csv_of(trial(1)).replace("completed", ""), "line 2: has no status"),
        ('a,"b', "is not CSV text in UTF-8: "),
    ],
)
def test_a_table_that_is_not_ours_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(InputError, match=f"^{tmp_path}/x.csv.*{message}"):
        compared(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"val_rmse": "low"}, r"line 1: val_rmse is 'low'; expected a number$"),
        ({"seed": [1]}, r"line 1: seed is \[1\]; expected a valid integer$"),
        ({"name": 5}, r"line 1: name is 5; expected a valid string$"),
        ({"config/lr": {"python date": 1}}, r"line 1: config/lr is \{'python date': 1\}; expected a value, not"),
        ({"status": ""}, r"line 1: status is ''; expected "),
        ({"val_rmse": float("nan")}, r"line 1: val_rmse is nan; expected a number$"),
        ({"status": "finished"}, r"line 1: status is 'finished'; expected 'completed', "),
    ],
)
def test_a_journal_that_was_changed_is_refused_in_results_and_in_the_report(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = study(tmp_path / "s", {**trial(1, val=0.5), **changed}, trial(2, val=0.6))
    for read in (compared, tuner.write_report):
        with pytest.raises(InputError, match=f"^{path}/attempts.jsonl, {message}"):
            read(path)


def test_a_journal_with_an_infinite_number_is_refused_in_results_and_in_the_report(tmp_path: Path) -> None:
    path = study(tmp_path / "s", trial(1, val=0.5, seed=0), trial(2, val=0.6, seed=1))
    journal = path / "attempts.jsonl"
    journal.write_text(journal.read_text().replace("0.5", "1e999").replace("0.6", "1e999"))
    for read in (compared, tuner.write_report):
        with pytest.raises(InputError, match=r"is inf; expected a number$"):
            read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"study\.json is damaged \(Expecting .*\); restore it from a copy"),
        (
            '{"workload": "graphsage", "seeds": "x"}',
            r"study\.json is damaged \(seeds is 'x'; expected a valid integer\); restore it",
        ),
        ("[]", r"study\.json is damaged \(expected a dictionary\)"),
    ],
)
def test_a_damaged_study_is_refused_in_results_and_in_the_report(one: Path, content: str, message: str) -> None:
    (one / "study.json").write_text(content)
    for name, read in (("results", compared), ("report", tuner.write_report)):
        with pytest.raises(InputError, match=f"^{name} {one}: {message}"):
            read(one)


def test_of_several_studies_a_damaged_one_is_left_out_and_told(one: Path, tmp_path: Path) -> None:
    (study(tmp_path / "two", trial(1, val=0.85)) / "study.json").write_text("{")
    (study(tmp_path / "three") / "attempts.jsonl").write_text("no\nno\n")
    found = compared(tmp_path)
    assert names(found) == ["n2", "n1", "n3"]
    assert found.notes == [
        f"left out: {tmp_path}/three/attempts.jsonl: 2 lines (1, 2) are incomplete, and there is no other; restore "
        "it from a copy, or resume the study",
        f"left out: results {tmp_path}/two: study.json is damaged (Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)); restore it from a copy, or start a new study",
    ]
    with pytest.raises(InputError, match=r"^results .*two: study\.json is damaged .*; 1 more cannot be read$"):
        compared(tmp_path / "two", tmp_path / "three")


def test_the_metric_of_a_study_is_a_column_before_a_trial_has_it(tmp_path: Path) -> None:
    path = study(tmp_path / "s", trial(1, status="interrupted"), metrics={"graphsage": "val_rmse"})
    assert names(compared(path, sort="val_rmse", columns="name,best_epoch")) == ["n1"]
    assert names(compared(path, where="val_rmse<1")) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: tuner.compare(3),
            "^3: is not a path; give the folder of a study, a results.csv or a list of them$",
        ),
        (lambda: tuner.results([3]), "^3: is not a path; give"),
        (lambda: tuner.results("one", where=3), "^where=3: must be a text, or a list"),
        (lambda: tuner.results("one", sort=[3]), "^sort=3: must be a text"),
        (lambda: tuner.results("one", columns=3), "^columns=3: must be a text"),
        (lambda: tuner.results("one", top="x"), "^top='x': must be a whole number$"),
        (
            lambda: tuner.compare("one", "two"),
            r"^metric 'two': .* no such column; several studies are given as a list, ",
        ),
        (lambda: tuner.compare("one", 3), "^metric 3: is not a text; give the name of a column, such as 'val_rmse'$"),
    ],
)
def test_values_of_another_kind_are_one_line(
    one: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], message: str
) -> None:
    monkeypatch.chdir(one.parent)
    with pytest.raises(InputError, match=message):
        call()


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not CSV text in UTF-8"):
        compared(tmp_path / "x.csv")


def test_places_without_a_study_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: there is no such file or folder"):
        compared(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is not a study and contains none"):
        compared(tmp_path)


def test_a_study_of_which_nothing_has_ended_is_told(one: Path, tmp_path: Path) -> None:
    empty = study(tmp_path / "empty")
    with pytest.raises(InputError, match="empty: no attempt has ended yet"):
        compared(empty)
    assert compared(empty, one).notes == [f"{empty}: no attempt has ended yet"]


def test_studies_of_other_data_are_told(one: Path, tmp_path: Path) -> None:
    a, b = (study(tmp_path / name, trial(1), fingerprint=name) for name in "ab")
    assert compared(one, a).notes == []
    (note,) = compared(a, b).notes
    assert note.startswith("graphsage: these studies have different data")


def test_a_workload_that_is_not_built_in_is_ranked_by_its_first_validation_metric(tmp_path: Path) -> None:
    rows = [trial(1, workload="own", train_loss=1, val_loss=3.0, val_x=1.0), trial(2, workload="own", val_loss=2.0)]
    found = compared(study(tmp_path / "s", *rows, workload="own"))
    assert (found.objectives, names(found)) == ({"own": Objective("val_loss")}, ["n2", "n1"])
    assert text(found)[-1].startswith("best: n2, val_loss 2.0000. Its values: ")


def test_the_frame_has_numbers_and_tells_what_could_not_be_read(tmp_path: Path) -> None:
    rows = [trial(1, val=0.5, best_epoch=2), trial(2, status="failed", error="E: no")]
    frame = tuner.results(study(tmp_path / "s", *rows))
    assert list(frame.columns) == list(compared(tmp_path / "s").columns)
    assert frame.best_epoch.tolist()[0] == 2
    assert (str(frame.best_epoch.dtype), str(frame.val_rmse.dtype), str(frame.seed.dtype)) == (
        "Int64",
        "float64",
        "int64",
    )
    assert frame.error.tolist() == ["", "E: no"]
    (tmp_path / "s" / "study.json").unlink()
    with pytest.warns(UserWarning, match=r"holds no study\.json: it is unknown how its trials were run"):
        assert tuner.results([tmp_path / "s"], columns="name", top=1).to_dict("list") == {"name": ["n1"]}


def test_a_pipe_has_whole_lines_and_a_terminal_its_width(one: Path) -> None:
    found = compared(one)
    piped, terminal = text(found), text(found, 60)
    heads = "name status val_rmse epochs seconds estimated_gb peak_gb lr error"
    assert piped[0].split() == heads.split()
    assert piped[1].split() == ["n2", "completed", "0.8000", "3", "1.5", "0.50", "0.40", "0.2"]
    assert piped[3].endswith("0.3  E: no")
    assert terminal[0].split() == ["name", "status", "val_rmse", "epochs", "peak_gb", "lr", "error"]
    left_out = "seconds, estimated_gb (shown by --columns, a wider terminal or results.csv)"
    assert " ".join(terminal[4:6]) == f"left out for lack of width: {left_out}"
    assert piped[4] == f"{one}: 3 trials: 2 completed, 1 failed"


def test_a_long_error_is_cut_on_a_terminal_and_has_no_control_characters(tmp_path: Path) -> None:
    long = trial(1, status="failed", error="\x1b[31mE: \udcff " + "x" * 100)
    found = compared(study(tmp_path / "s", long))
    assert text(found)[1].endswith("?[31mE: ? " + "x" * 100)
    assert text(found, 90)[1].split("  ")[-1].startswith("?[31mE: ? xxx") and len(text(found, 90)[1]) == 90


def test_columns_that_are_asked_for_are_shown_in_their_order(one: Path) -> None:
    lines = text(compared(one, columns="lr,name,seconds"))
    assert [line.split() for line in lines[:2]] == [["lr", "name", "seconds"], ["0.2", "n2", "1.5"]]


def test_several_studies_have_a_column_and_a_line_each(one: Path, tmp_path: Path) -> None:
    planned = study(tmp_path / "two", trial(1, val=0.85), configurations=[{"name": "n"}] * 4)
    lines = text(compared(one, planned))
    assert [line.split()[0] for line in lines[:3]] == ["study", "one", "two"]
    assert lines[5:7] == [
        f"one  {one}: 3 trials: 2 completed, 1 failed; best n2, val_rmse 0.8000",
        f"two  {planned}: 1 of 4 trials: 1 completed; best n1, val_rmse 0.8500",
    ]
    assert lines[7].startswith("best: n2 of one, val_rmse 0.8000. Again: ")


def test_one_trial_is_not_called_several(tmp_path: Path) -> None:
    path = study(tmp_path / "s", trial(1, val=0.9))
    assert text(compared(path))[-2] == f"{path}: 1 trial: 1 completed"


def test_workloads_have_tables_and_best_trials_of_their_own(tmp_path: Path) -> None:
    options = {**to_stored(Settings()), "workload": ["graphsage", "gt-ssl"], "data": {"gt-ssl": "trees"}}
    rows = [trial(1, val=0.9), trial(2, workload="gt-ssl", val_loss=-1.5)]
    path = study(tmp_path / "s", *rows, workload=["graphsage", "gt-ssl"], options=options)
    lines = text(compared(path))
    assert [lines[0], lines[3]] == ["graphsage", "gt-ssl"]
    assert lines[-2].startswith("best: graphsage/n1, val_rmse 0.9000. Again: ")
    assert lines[-1].endswith(f" train --from {path} --trial t2")


def test_a_study_from_python_gives_its_best_model_and_of_others_the_values(tmp_path: Path) -> None:
    path = study(tmp_path / "s", trial(1, val=0.9, LR=0.1), trial(2, val=0.8, LR=0.2), options=None)
    assert text(compared(path))[-1] == f"best: n2, val_rmse 0.8000. Again: tuner.load_best({str(path)!r})"
    assert text(compared(path, where=["lr<0.2"]))[-1] == "best: n1, val_rmse 0.9000. Its values: --set lr=0.1"


def test_a_study_of_several_seeds_has_means_of_what_meets_the_conditions(tmp_path: Path) -> None:
    values = {"a": (0.80, 0.82), "b": (0.81, 0.85), "c": (0.95, 0.96)}
    figures = [(name, seed, value) for name, both in values.items() for seed, value in enumerate(both)]
    rows = [trial(i, name=name, seed=seed, val=value) for i, (name, seed, value) in enumerate(figures)]
    folder = study(tmp_path / "one", *rows, seeds=2, configurations=[{"name": name} for name in values])
    printed = "\n".join(text(compared(folder), width=140))
    assert "0.81 ± 0.13" in printed
    assert "1 of 2 other configurations cannot be told from the best, a, at 95 % (paired over 2 seeds" in printed
    assert "best single trial: a (seed 0), val_rmse 0.8000." in printed
    assert "6 trials: 6 completed" in printed
    assert not any(line.endswith(" ") for line in text(compared(folder)))
    assert "0.81 ± 0.13" in "\n".join(text(compared(folder, where="val_rmse<0.815"), width=140))  # not of 0.80 alone
    assert "1 of 1 other configuration cannot" in "\n".join(text(compared(folder, where="name!=c"), width=140))


@pytest.mark.parametrize("condition", ["val_rmse<abc", "lr=abc", "val_rmse != 'abc'"])
def test_a_word_beside_a_column_of_numbers_is_refused(one: Path, condition: str) -> None:
    with pytest.raises(
        InputError, match=f"^where={re.escape(repr(condition))}: .* holds numbers, and 'abc' is not a number$"
    ):
        compared(one, where=["status=completed", condition])
    assert names(compared(one, where=["val_rmse~abc"])) == []


def test_a_word_is_compared_with_a_column_of_numbers_and_words(tmp_path: Path) -> None:
    path = study(tmp_path / "s", trial(1, val=0.9, BATCH_SIZE="auto"), trial(2, val=0.8, BATCH_SIZE=64))
    assert names(compared(path, where="batch_size=auto")) == ["n1"]
    assert names(compared(path, where="batch_size!=other")) == ["n2", "n1"]


def seeded(path: Path, values: dict[str, tuple[float, ...]], **about: Any) -> Path:
    """A study with a trial for each figure, seeds counted from 0."""
    figures = [(name, seed, value) for name, losses in values.items() for seed, value in enumerate(losses)]
    rows = [trial(i, name=name, seed=seed, val=value) for i, (name, seed, value) in enumerate(figures)]
    return study(path, *rows, **about)


def test_means_of_studies_of_the_same_data_are_compared_with_each_other(tmp_path: Path) -> None:
    one = seeded(tmp_path / "one", {"a": (0.80, 0.82), "b": (0.95, 0.96)}, fingerprint="same")
    two = seeded(tmp_path / "two", {"a": (0.70, 0.84)}, fingerprint="same")
    other = seeded(tmp_path / "other", {"a": (0.1, 0.2), "c": (0.15, 0.17)}, fingerprint="else")
    alone = seeded(tmp_path / "alone", {"a": (0.5,)})
    lines = text(compared(one, two, other, alone), width=150)
    means = [line[: line.index("  ")] for line in lines if " ± " in line]
    assert means == ["a of other", "c of other", "a of two", "a of one", "b of one"]
    assert sum("to the best" in line for line in lines) == 2, "a study of one seed has no means"
    assert f"one    {one}: 4 trials: 4 completed; best single trial a (seed 0), val_rmse 0.8000" in lines
    frame = tuner.compare([one, two, other, alone])
    assert {(row.study, row.name): row.verdict for row in frame.itertuples()} == {
        ("two", "a"): "best",
        ("one", "a"): "=",
        ("one", "b"): "=",
        ("other", "a"): "best",
        ("other", "c"): "=",
        ("alone", "a"): "",
    }
    table = tuner.compare(tuner.results([one, two]))
    assert sorted(table.verdict) == ["best", "best", "worse"], "a table does not say whether the data are the same"


def test_nothing_that_meets_the_conditions_is_said(one: Path) -> None:
    assert text(compared(one, where=["lr>1"]))[0] == "no trial of 3 meets what --where asks for"


def test_options_that_a_study_had_not_yet_have_their_defaults(one: Path) -> None:
    about = json.loads((one / "study.json").read_text())
    del about["options"]["seed"]
    about["options"]["bygone"] = 1
    (one / "study.json").write_text(json.dumps({**about, "plan": {}}))
    assert text(compared(one))[-1].endswith(" -m tuner --only n2")


COMMAND = """
import sys
from tuner.cli.main import main
try:
    main()
finally:
    print({"torch", "torch_geometric", "ray", "pandas"} & set(sys.modules), file=sys.stderr)
"""


def test_the_command_prints_a_table_and_loads_nothing_heavy(one: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND, "results", "one", "--sort", "-lr", "--where", "lr>=0.2"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (shown.returncode, shown.stderr) == (0, "set()\n")
    assert [line.split()[0] for line in shown.stdout.splitlines()[:3]] == ["name", "n3", "n2"]


def test_the_command_prints_json_or_csv(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = json.loads(said(capsys, "results", str(one), "--json", "--columns", "study,name,lr"))
    assert records[0] == {"study": "one", "name": "n2", "config/lr": 0.2}
    lines = said(capsys, "results", str(one), "--csv", "--columns", "name,error")
    assert lines == "name,error\nn2,\nn1,\nn3,E: no\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one", "--where", "lr"], "--where lr: expected a name, one of = != < <= > >= ~ and a value, "),
        ([], "results/ holds no study: run one, or give the folder of a study"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    one: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(one.parent)
    assert refused(capsys, "results", *arguments).startswith(f"error: {message}")
