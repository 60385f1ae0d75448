"""What plain Python does with the names of the user's main file works in a trial."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tuner
from tuner.errors import InputError

PROGRAM = """
import functools, multiprocessing, pickle, sys
import tuner
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
    assert fib(9) == 34 and sys.argv[1:] == ["own"]
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


def test_a_process_that_imports_the_main_file_to_begin_starts_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(InputError, match="start studies under if __name__ == '__main__':"):
        tuner.run(
            lambda config: None, metric="loss", direction="min", config=[{"x": 1}], output=str(tmp_path / "out")
        )
    assert not (tmp_path / "out").exists()
