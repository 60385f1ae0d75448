"""A signal at any moment of a start ends a command with 130 and one line, and nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import psutil
import pytest

ROOT = Path(__file__).parents[2]
FUNCTION = (
    "import time, tuner\ndef train(config):\n    for epoch in range(99):\n"
    "        time.sleep(0.2)\n        tuner.report(loss=config['n'])\n"
)
OPTIONS = (
    "--max-workers",
    "2",
    "--device",
    "cpu",
    "--memory-gb",
    "0.5",
    "--metric",
    "loss",
    "--direction",
    "min",
    "--output",
    "study",
)


def test_a_signal_during_an_import_ends_a_command_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text("import os, sys\nos.kill(os.getpid(), int(sys.argv[1]))\n")
    code = "from tuner.machine.interrupts import end_on_signals; end_on_signals(); import stuck"
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        words = [sys.executable, "-c", code, str(int(number))]
        ended = subprocess.run(words, capture_output=True, text=True, env=variables, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("seconds", [0.5, 2.5, 4.0, 6.0])
def test_a_signal_to_the_group_ends_a_start_of_ray_at_once(
    tmp_path: Path, seconds: float, number: signal.Signals
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/trial.py").write_text(FUNCTION)
    (tmp_path / "work/space.yaml").write_text("space: {n: {choice: [1, 2]}}")
    words = [sys.executable, "-m", "tuner", "run", "trial:train", "--space", "space.yaml", *OPTIONS]
    scratch = Path(mkdtemp(prefix="t", dir="/tmp"))  # sockets have short paths
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    study = subprocess.Popen(
        words, cwd=tmp_path / "work", env=variables, start_new_session=True, text=True, **streams
    )
    time.sleep(seconds)
    os.killpg(study.pid, number)
    said = study.communicate(timeout=30)[1]
    assert (study.returncode, said.strip()) == (130, "error: interrupted")
    scratch.rmdir()  # nothing is left in it
    assert not [process for process in psutil.process_iter() if _of(process, scratch)]


def _of(process: psutil.Process, scratch: Path) -> bool:
    try:
        return process.environ().get("TMPDIR") == str(scratch) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
