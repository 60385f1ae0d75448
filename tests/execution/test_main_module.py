"""What plain Python does with the names of the user's main file works in a trial."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import tuner
from tuner.errors import InputError

PROGRAM = """
'Its docstring.'
import argparse, dataclasses, functools, inspect, multiprocessing, pickle, sys, typing
import tuner
LIMIT, OPENED = 3, open(__file__)
CACHE = {}
class Unnamed: pass
@dataclasses.dataclass
class Options:
    limit: "typing.Optional[int]"
    names: list = dataclasses.field(default_factory=list)
@functools.singledispatch
def kind(value): return "other"
@kind.register
def _(value: int): return "whole"
class Outer:
    class Inner: pass
class Chosen: pass
@functools.lru_cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def made(n):
    return Outer.Inner()
def train(config):
    assert type(pickle.loads(pickle.dumps(config["object"]))) is type(config["object"])
    assert fib(9) == 34 and sys.argv[1:] == ["own"] and kind(1) == "whole"
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    assert parser.parse_args().mode == "own"
    import __main__
    assert (__main__.LIMIT, __main__.Unnamed.__name__, __main__.__doc__) == (3, "Unnamed", "Its docstring.")
    assert __main__.train is train and globals() is vars(__main__) and __main__.CACHE is CACHE
    assert pickle.loads(b"c__main__\\nUnnamed\\n.") is __main__.Unnamed
    assert typing.get_type_hints(Options) and dataclasses.fields(Options)[0].default is dataclasses.MISSING
    assert all(inspect.getsource(code) for code in (Options, made, fib, __main__))
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert type(pool.map_async(made, [1]).get(60)[0]) is Outer.Inner
    tuner.report(loss=1)
if __name__ == "__main__":
    tuner.run(train, space={"object": {"choice": [Chosen()]}}, search="grid", metric="loss", direction="min",
        memory_gb=1, gpu_memory_buffer_gb=0, output="out", device="cpu", report=False)
"""


def test_classes_and_functions_of_the_main_file_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(tuner.__file__).parents[1]), *sys.path])}
    command = [sys.executable, "train.py", "own"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert tuner.results(tmp_path / "out")["status"].tolist() == ["completed"], ran.stdout + ran.stderr


NOTEBOOK = """
import inspect, multiprocessing, pickle, sys, torch, tuner
open("begun", "a").write("x")
class Net(torch.nn.Linear): pass
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor(float(index))
def square(n): return n * n
def train(config):
    torch.save(Net(2, 2), "model.pt")
    assert type(torch.load("model.pt", weights_only=False)) is Net and inspect.getsource(square) == SOURCE
    with multiprocessing.Pool(1) as pool:
        assert pool.map(square, [3]) == [9]
    tuner.report(loss=float(sum(torch.utils.data.DataLoader(Numbers(), num_workers=1))))
SOURCE = inspect.getsource(square)
tuner.run(train, config=[{"x": 1}], metric="loss", direction="min", memory_gb=1, gpu_memory_buffer_gb=0, output="out",
    device="cpu", report=False)
"""


@pytest.mark.parametrize("kind", ["notebook", "program"])
def test_a_notebook_and_an_unguarded_program_have_all_in_their_main_module_and_run_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(Path(tuner.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    if kind == "notebook":
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
        NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    else:
        (tmp_path / "a-demo.py").write_text(NOTEBOOK)
        subprocess.run([sys.executable, "a-demo.py"], cwd=tmp_path, check=True, capture_output=True, timeout=240)
    assert tuner.results(tmp_path / "out")[["status", "loss"]].values.tolist() == [["completed", 28.0]]
    assert (tmp_path / "begun").read_text() == "x"


def test_a_process_that_imports_the_main_file_to_begin_starts_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(InputError, match="start studies under if __name__ == '__main__':"):
        tuner.run(
            lambda config: None, metric="loss", direction="min", config=[{"x": 1}], output=str(tmp_path / "out")
        )
    assert not (tmp_path / "out").exists()
