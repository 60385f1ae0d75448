"""A workload of the user's own, in tests/support/digits.py: nothing under tuner/ knows it."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from tests.support.commands import refused
from tests.support.toy import Toy
from tuner.cli.main import cli
from tuner.cli.options import chosen as chosen_in_terminal
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.records.study_record import read_study
from tuner.spec.commands import PlanOptions
from tuner.spec.listed import choose, chosen_before
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.past_trial import find_trial
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.workloads.lookup import Finder, classes_of, find_workload, specs_of
from tuner.workloads.pickling import fingerprint

ROOT = Path(tuner.__file__).parents[1]
CODE = (ROOT / "tests" / "support" / "digits.py").read_text()
GRID = "grid:\n  hidden: [64, 2048]\n  layers: [1, 2]\n"
MINIMAL = """
from tuner import Hyperparameter, Workload
class Mine(Workload):
    metric = "val_loss"
    hyperparameters = {key: Hyperparameter(1, 0, 9) for key in ("epochs", "lr", "weight_decay")}
    def load_data(self, source, seed): return source, open("nowhere")
    def build_model(self, config, data): pass
    def batches(self, config, data): pass
    def loss(self, model, batch): pass
    def evaluate(self, model, data, split): pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, from which modules can be imported for the length of a test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    (tmp_path / "digits.py").write_text(CODE)
    (tmp_path / "digits.yaml").write_text(GRID)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def chosen(workload: Any, **options: Any) -> Any:
    return choose(Settings.of({"workload": workload, **options}), 0)


def study(workload: Any, folder: Path, **options: Any) -> StudyResult:
    choices, label = chosen(workload, **options)
    settings = Settings(output=str(folder), device="cpu", model_memory_gb=0.1, gpu_memory_buffer_gb=0, report=False)
    stored = {"data": "", "skip_bad": False, "workload": specs_of(workload)}
    return run_study(StudySpec(choices, settings, label=label, command="a test", options=stored), InProcessExecutor())


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)


def test_the_example_is_short_and_is_estimated_by_the_tracer(here: Path) -> None:
    assert len(CODE.splitlines()) < 60
    found = tuner.estimate(workload="digits:Digits", config="digits.yaml", device="cpu")
    assert [(name, failure.method, failure.note) for name, failure in found] == [
        (f"hidden={hidden},layers={layers}", "traced", "") for hidden in (64, 2048) for layers in (1, 2)
    ]
    large = found[-1][1]
    assert large.parameter_bytes == 4 * (64 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 10 + 10)
    assert large.context_bytes > tuner.estimate(limit=1, device="cpu")[0][1].context_bytes, "scikit-learn takes some"


@pytest.mark.long
@pytest.mark.ray
def test_it_is_tuned_retried_resumed_trained_again_and_loaded(
    here: Path, monkeypatch: pytest.MonkeyPatch, shared_ray: None
) -> None:
    common: dict[str, Any] = {"device": "cpu", "gpu_memory_buffer_gb": 0.5, "threads": 1, "report": False}
    config = {"config": "digits.yaml", "overrides": ["epochs=1"]}
    rows = tuner.run("digits:Digits", **config, auto_memory=True, output="study", limit=1, **common).rows
    assert [(row["workload"], row["status"], row["attempts"]) for row in rows] == [("digits", "completed", 1)]
    with monkeypatch.context() as patch:
        patch.setattr("tuner.study.study.make_executor", lambda _: InProcessExecutor())  # workers have had the class
        resumed = tuner.run(resume="study", seeds=2, threads=1)
    assert [row["status"] for row in resumed.rows] == ["completed"] * 2
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec(CODE, notebook)
    Digits = notebook["Digits"]  # it cannot be imported anywhere
    big = {"overrides": ["hidden=3072", "layers=2", "epochs=1"], "model_memory_gb": 0.4, "backoff": 0.1, **common}
    (row,) = tuner.run(Digits(), **big, output="poor").rows
    assert (row["status"], row["attempts"]) == ("completed", 2)
    assert row["limit_gb"] >= 0.599, "the half more, or what the failed allocation asked for"
    assert len(tuner.run(Digits(), resume="poor").rows) == 1
    assert json.loads(Path("poor/study.json").read_text())["classes"] == {"digits": None}
    with pytest.raises(InputError, match="its workload digits must be given again"):
        tuner.run(resume="poor")
    with pytest.raises(InputError, match=r"give it again: tuner.load_best\('poor', workload=…\)"):
        tuner.load_best("poor")
    assert tuner.load_best("poor", Digits)[0][0].out_features == 3072
    tuner.train("study", epochs=1, output="longer", device="cpu")
    for folder in ("study", "longer"):
        assert tuner.load_best(folder)(torch.zeros(3, 64)).shape == (3, 10)


def test_a_study_keeps_where_its_class_is_found(here: Path) -> None:
    study("digits:Digits", here / "out", overrides=("epochs=1",))
    written = read_study(here / "out")
    assert (written.workload, written.classes) == ("digits", {"digits": "digits:Digits"})
    assert written.metrics == {"digits": "val_error"}
    (again,) = chosen_before(written.configurations, ["digits"], "", 0, classes=written.classes)
    assert again.configurations[0].values["epochs"] == 1
    past = find_trial(here / "out", "best", "digits:Digits", None)
    assert (past.row.name, past.workload.name) == ("default", "digits")
    assert past.has_data(past.selection(None).load_checked())
    (here / "digits.py").rename(here / "figures.py")
    del sys.modules["digits"]
    with pytest.raises(InputError, match=r"workload 'digits:Digits': there is no module 'digits' in .* or installed"):
        tuner.load_best(here / "out")
    assert tuner.load_best(here / "out", "figures:Digits")(torch.zeros(3, 64)).shape == (3, 10)
    frame = tuner.results(here / "out")
    assert frame.workload.tolist() == ["digits"], "the class is not needed"
    assert tuner.compare(here / "out")["mean"].tolist() == frame.val_error.tolist()


def test_objects_and_classes_are_taken_as_well_and_each_has_its_data(here: Path) -> None:
    cls = type(find_workload("digits:Digits"))
    (by_object, toy), label = chosen([cls(), "tests.support.toy:Toy"], data={"tests.support.toy:Toy": "there"})
    assert (by_object.workload.name, toy.workload.name, label) == ("digits", "toy", "default")
    assert [configuration.name for configuration in toy.configurations] == ["default"]
    assert toy.load_data.args == (toy.workload, "there", 0)
    assert specs_of([cls(), cls]) == ["digits:Digits"] * 2
    adjusted = cls()
    adjusted.size = 3
    assert (specs_of(adjusted), classes_of([adjusted])) == (None, {"digits": None})
    with pytest.raises(InputError, match="two workloads are called 'digits': give one of them another name"):
        chosen([cls(), adjusted])
    entries = [{"workload": "digits:Digits", "name": "a"}, {"workload": "digits", "name": "b"}]
    (here / "own.yaml").write_text(json.dumps({"configurations": entries}))
    (found,), _ = chosen("digits:Digits", config="own.yaml")
    assert [configuration.name for configuration in found.configurations] == ["a", "b"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digts:Digits", r"there is no module 'digts' in .* or installed: did you mean digits\?"),
        ("digits:Digit", r"digits has no 'Digit': did you mean Digits\?"),
        ("digits.py:Digits", r"there is no module 'digits.py' in .* or installed: did you mean digits\?"),
        ("digits:", "expected MODULE:CLASS or MODULE:FUNCTION, such as my_model:train"),
        ("digits:load_digits", "load_digits takes no configuration: define it as def load_digits"),
        ("torch.nn:Linear", "it is a class, but not one derived from tuner.Workload"),
        ("digits", r"unknown workload 'digits': did you mean digits:Digits\?"),
        ("digits.py", r"unknown workload 'digits.py': did you mean digits:Digits\?"),
        ("figures", "unknown workload 'figures': choose one of graphsage, .*, or give your own as MODULE:CLASS or"),
        ("tuner:Workload", "it lacks the methods batches, build_model, evaluate, load_data, loss"),
    ],
)
def test_a_class_that_is_not_there_is_refused(here: Path, spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen(spec)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def loss", "def los", "workload mine:Mine: it lacks the method loss"),
        ("(1, 0, 9)", "(1, 2, 9)", "the default of epochs is 1, not from 2 to 9"),
        ("(1, 0, 9)", "(1, 9, 0)", "epochs is from 9 to 0: give the smallest first"),
        (
            "Hyperparameter(1, 0, 9) for",
            "None for",
            "'epochs' is None: expected a number, a text or a tuner.Hyperpar",
        ),
        ("Hyperparameter(1, 0, 9) for", "2.5 for", "the default of epochs is 2.5: give a whole number"),
        ("Hyperparameter(1, 0, 9) for", "'a' for", "the default of epochs is 'a': the training loop reads a number"),
        ("Hyperparameter(1, 0, 9) for", "0 for", "the default of epochs is 0, not from 1 to 100000"),
        ('"val_loss"', '"loss"', "metric is 'loss': expected 'val_' and a metric's name from evaluate"),
        ("    metric", '    headline = "f1"; metric', "headline is 'f1': expected names of metrics from evaluate"),
        ("    metric", '    data_keys = ("size",); metric', r"data_keys is \('size',\): expected names of its hyper"),
        ("hyperparameters =", "parameters =", "hyperparameters is None: expected a dictionary of tuner.Hyperparam"),
        ("    metric", '    name = "graphsage"; metric', "workload graphsage: a built-in workload has this name"),
        ("    metric", '    name = "a/b"; metric', "name 'a/b': expected letters, digits"),
        ("    metric", '    name = "a" * 151; metric', "name a{30}… is too long: give one of at most 150 letters"),
        (
            "    metric",
            '    memory_scales_with = "size"; metric',
            "memory_scales_with is 'size', which is not one of its numeric hyperparameters",
        ),
        (
            "    metric",
            "    def __init__(self, size): pass\n    metric",
            r"cannot be made without arguments \(TypeError: .*'size' \(mine.py, line 4\)\)",
        ),
        (
            "from tuner",
            "import sys\nsys.exit(3)\nfrom tuner",
            r"importing mine ends the program \(SystemExit: 3 \(mine.py, li",
        ),
        ("class Mine", "class Mine Mine", r"SyntaxError: invalid syntax \(mine.py, line 3\)$"),
        (
            "from tuner",
            "import nowhere\nfrom tuner",
            r"importing mine failed: ModuleNotFoundError: .*mine.py, line 2",
        ),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(here: Path, old: str, new: str, message: str) -> None:
    assert old in MINIMAL
    (here / "mine.py").write_text(MINIMAL.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        chosen("mine:Mine")


def test_what_its_own_code_raises_is_told_in_a_line_and_shown_by_debug(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(MINIMAL)
    line = refused(capsys, "--workload", "mine:Mine", "--dry-run")
    assert re.search(
        r"load_data\('', 0\) failed: FileNotFoundError: .*\(mine.py, line 6\); --debug shows where$", line
    )
    with pytest.raises(InputError, match=r"workload mine: load_data\('a b', 0\) failed: FileNotFoundError: .*line 6"):
        chosen("mine:Mine", data="a b")[0][0].load_data()
    with pytest.raises(InputError, match="mode='full': workload mine:Mine has no modes: give it a list by config"):
        chosen("mine:Mine", mode="full")
    for words in (("--mode", "quick", "--workload", "mine:Mine"), ("--workload", "mine:Mine", "--mode", "quick")):
        context = cli.commands["plan"].make_context("plan", [*words])
        with pytest.raises(InputError, match="mode='quick': workload mine:Mine has no modes"):
            chosen_in_terminal(context, PlanOptions).check_selection()
    result = run("-m", "tuner", "--workload", "mine:Mine", "--output", "out", "--debug")
    assert (result.returncode, (here / "out").exists()) == (2, False)
    assert 'mine.py", line 6, in load_data' in result.stderr
    assert result.stderr.splitlines()[-1].startswith(
        "error: workload mine: load_data('', 0) failed: FileNotFoundError"
    )


def test_a_metric_that_evaluate_does_not_return_fails_the_trial_with_what_it_gave(here: Path) -> None:
    (here / "digits.py").write_text(CODE.replace('{"error":', '{"accuracy":'))
    (row,) = study("digits:Digits", here / "out").rows
    assert (row["status"], row["error"]) == (
        "failed",
        "evaluation: workload digits: evaluate returned accuracy, but not 'error', which metric 'val_error' needs",
    )
    assert "in evaluate" in (here / "out" / "tracebacks.log").read_text()


def test_names_follow_from_classes() -> None:
    names = {"MyModel": "my-model", "GATEncoder": "gat-encoder", "Unet2D": "unet2-d", "_Mine": "mine"}
    assert {name: type(name, (Toy,), {}).name for name in names} == names


LOAD = "import pickle, sys; found = pickle.load(open(sys.argv[1], 'rb')); print(found[0].name, found[1].tolist())"


def test_another_process_has_the_class_by_its_folder(here: Path) -> None:
    import cloudpickle

    (here / "project").mkdir()
    (here / "project" / "helpers.py").write_text("import numpy as np\ndef half(x): return np.array([x / 2])\n")
    (here / "project" / "mine.py").write_text(
        f"from helpers import half\n{MINIMAL}\n    def describe(self, data): return half(data)\n"
    )
    sys.path.insert(0, str(here / "project"))
    workload = find_workload("mine:Mine")
    (here / "sent").write_bytes(cloudpickle.dumps((workload, workload.describe(3))))
    result = run("-c", LOAD, "sent")
    assert result.stdout == "mine [1.5]\n", result.stderr
    assert pickle.loads(pickle.dumps(workload)).describe(3).tolist() == [1.5]  # noqa: S301


def test_another_process_searches_for_modules_where_the_study_does(here: Path) -> None:
    for folder, name, text in (
        ("lib", "helpers", "HALF = 0.5\n"),
        ("project", "mine", f"import helpers\n{MINIMAL}\n"),
    ):
        (here / folder).mkdir()
        (here / folder / f"{name}.py").write_text(text)
        sys.path.insert(0, folder)
    (here / "sent").write_bytes(pickle.dumps(find_workload("mine:Mine")))
    result = run("-c", "import pickle, sys; print(pickle.load(open('sent', 'rb')).name)")
    assert result.stdout == "mine\n", result.stderr


SCRIPT = """
import torch
from tests.support.commands import refused
from tests.support.toy import Toy
class Mine(Toy):
    name = "mine"
estimates = tuner.estimate(workload=Mine(), memory_estimation="measured", calibration=False, device="cpu")
print([(name, failure.method) for name, failure in estimates])
"""


def test_a_class_of_a_script_is_measured_without_running_the_script_again(here: Path) -> None:
    (here / "script.py").write_text(f"import tuner\nprint('begun')\n{SCRIPT}")
    result = run("script.py")
    assert result.stdout == "begun\n[('default', 'measured')]\n", result.stderr


def test_tensors_have_a_fingerprint_that_follows_from_their_values() -> None:
    one, other = ({"x": torch.arange(6).reshape(2, 3).bfloat16()} for _ in range(2))
    assert fingerprint(one) == fingerprint(other) != fingerprint({"x": one["x"] + 1})
    assert fingerprint(one) != fingerprint({"x": one["x"].float()})
    with pytest.raises(InputError, match="the data cannot go to workers, as they cannot be pickled"):
        fingerprint({"x": lambda: 0})


def test_a_workload_is_found_once() -> None:
    find = Finder({"toy": "tests.support.toy:Toy"})
    assert find("tests.support.toy:Toy") is find("toy") is find(Toy)
    with pytest.raises(InputError, match=r"workload wide: tests.support.toy:Wide is now called 'toy-wide'"):
        find_workload("wide", {"wide": "tests.support.toy:Wide"})
