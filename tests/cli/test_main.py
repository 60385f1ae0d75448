"""The command line as a user runs it: a process, its output, its exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import torch

from tests.support.commands import refused, said
from tuner.cli.main import cli, main
from tuner.errors import InputError
from tuner.spec.settings import Settings

COMMAND = [sys.executable, "-m", "tuner"]
ROOT = Path(__file__).parents[2]


def tune(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120)


def own_file(folder: Path, text: str) -> str:
    path = folder / "own.yaml"
    path.write_text(text)
    return str(path)


SMALL = """
defaults: {batch_size: 100, epochs: 2}
configurations:
  - {name: a, hidden_dim: 4}
  - {name: b c, hidden_dim: 8}
  - {name: d, hidden_dim: 8, num_layers: 3}
"""

TOYS = """
defaults: {epochs: 2}
configurations:
  - {name: a, width: 4}
  - {name: b c, width: 8}
  - {name: d, width: 8, lr: 0.01}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A study in the folder ``out`` of this one, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    study = ["--workload", "tests.support.toy:Wide", "--config", own_file(folder, TOYS), "--output", "out"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("PYTHONPATH", str(ROOT))
        run = tune(*study, "--auto-memory", "--max-workers", "1", cwd=folder)
    assert (run.returncode, run.stderr) == (0, "")
    return folder, run.stdout


@pytest.mark.long
@pytest.mark.ray
def test_a_study_runs_without_a_home_and_with_a_long_folder_for_temporary_files_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/dev/null/none")
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # as on clusters whose users have a token at home
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("TMPDIR", short)
        run = tune("--config", own_file(tmp_path, SMALL), "--max-workers", "2", "--output", "out", cwd=tmp_path)
        assert (run.returncode, run.stderr) == (0, "")
        assert pd.read_csv(tmp_path / "out" / "results.csv").status.tolist() == ["completed"] * 3
        assert [*Path(short).iterdir(), *long.iterdir()] == []


def command_again(printed: str) -> str:
    (again,) = re.findall("^best: .* Again: (.*)$", printed, re.MULTILINE)
    return str(again)


def test_a_study_ends_with_a_table_a_csv_and_the_best(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, printed = finished
    assert ", the largest (traced)" in printed
    assert re.findall(r"^\d\d:\d\d:\d\d (\[\d/\d\])", printed, re.MULTILINE) == ["[1/3]", "[2/3]", "[3/3]"]
    results = pd.read_csv(folder / "out" / "results.csv")
    assert results.status.tolist() == ["completed"] * 3
    assert (results.peak_memory_gb > 0.05).all()
    monkeypatch.chdir(folder)
    assert f"Again: {command_again(printed)}\n" in said(capsys, "results", "out")


def test_a_trial_of_a_study_is_trained_again_without_ray_to_the_last_digit(
    finished: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished[0])
    printed = said(capsys, "train", "--from", "out", "--exact", "--output", str(tmp_path / "trained"))
    assert printed.endswith("the metrics equal those of the study, to the last digit\n")
    there, here = (
        torch.load(folder / "best.pt", weights_only=True) for folder in (Path("out"), tmp_path / "trained")
    )
    assert here["metrics"] == there["metrics"]
    assert all(torch.equal(weight, here["weights"][name]) for name, weight in there["weights"].items())


@pytest.mark.ray
def test_the_command_that_repeats_the_best_may_be_ended_by_a_limit_of_time_and_gone_on_with_for_more_seeds(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared_ray: None
) -> None:
    folder, printed = finished
    python = min(sys.executable, os.path.relpath(sys.executable, folder), key=len)
    program, rest = re.fullmatch("(tuner|.* -m tuner) (.*)", command_again(printed)).groups()
    assert program in ("tuner", f"{python} -m tuner")
    monkeypatch.chdir(folder)
    options = [*shlex.split(rest), "--output", "again", "--seeds", "2", "--time-limit", "0.01s"]
    assert said(capsys, *options, code=1).splitlines()[-1] == f"continue with: {program} --resume again"
    rows = pd.read_csv(folder / "again" / "results.csv")
    assert set(rows.error) == {"time limit of 0.01s reached before it started"}
    said(capsys, "--resume", "again", "--seeds", "3", "--max-workers", "1")
    rows = pd.read_csv(folder / "again" / "results.csv")
    assert list(zip(rows.seed, rows.status, strict=True)) == [(seed, "completed") for seed in (0, 1, 2)]
    tried = pd.read_csv(folder / "out" / "results.csv")
    same = ["name", "val_error", "test_error"]
    assert rows.loc[0, same].tolist() == tried.loc[tried.val_error.idxmin(), same].tolist()


ENDLESS = """
import time
from tests.support.toy import Toy
from tuner import Hyperparameter
class Endless(Toy):
    name = "endless"
    hyperparameters = {**Toy.hyperparameters, "epochs": Hyperparameter(1, 1, 99999)}
    def load_data(self, source, seed): time.sleep(1)
    def describe(self, data): return "none"
"""


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes that work in this folder: a study's own, and Ray's below it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_ctrl_c_on_a_terminal_keeps_the_finished_and_leaves_no_process(tmp_path: Path) -> None:
    text = "defaults: {epochs: 99999}\nconfigurations: [{name: brief, epochs: 1}, {name: long}]"
    (tmp_path / "endless.py").write_text(ENDLESS)
    arguments = ["--workload", "endless:Endless", "--config", own_file(tmp_path, text), "--output", "out"]
    arguments += ["--model-memory-gb", "0.5", "--max-workers", "1"]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        terminal_of = {"TERM": "xterm", "COLUMNS": "150", "PYTHONPATH": str(ROOT)}
        os.execve(sys.executable, [*COMMAND, *arguments], {**os.environ, **terminal_of})
    output, pressed, deadline = "", False, time.monotonic() + 90
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            output += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # the terminal's other end is closed: the command has ended
            break
        if not pressed and "1/2 done, 1 running" in output and re.search(r"long .*/99999", output):
            pressed = True
            os.write(terminal, b"\x03")
    if time.monotonic() >= deadline:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130, output
    phases = [
        output.index(phase) for phase in (" importing", " loading data", "data       ", " starting", "1/2 done")
    ]
    assert phases == sorted(phases)
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    assert dict(zip(results.name, results.status, strict=True)) == {"brief": "completed", "long": "interrupted"}
    assert (tmp_path / "out" / "best.pt").exists()
    kept = torch.load(tmp_path / "out" / "checkpoints" / "t002.pt", weights_only=True)
    assert kept["progress"]["epoch"] == results.epochs[results.name == "long"].item() > 0
    assert psutil.wait_procs(processes_of(tmp_path), timeout=10)[1] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "no folder 'nowhere'"),
        (["--mode", "speed"], "unknown mode 'speed'"),
        (["--model-memory-gb", "0"], "--model-memory-gb 0: must be more than 0"),
        (["--model-memory-gb", "1e6"], "a trial needs 1000000.00 GB, but cpu has"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["--config", "own.yaml", "--mode", "full"], "leave one of them out"),
        (["--auto-memory", "--model-memory-gb", "2"], "leave one of them out"),
        (
            ["--no-auto-memory"],
            "--no-auto-memory: then the memory of each trial must be given: give --model-memory-gb",
        ),
        (["--model-memory-gb", "2", "--memory-estimation", "traced"], "has no effect with --model-memory-gb"),
        (["--output", "own.yaml/out"], "--output own.yaml/out: cannot be written: "),
        (["--epochs", "many"], "'many' is not a valid integer"),
        (["--no-such-option"], "No such option"),
        (["--workload", "graphsage", "--workload", "graph"], "unknown workload 'graph': choose one of graphsage"),
        (["--data", "synthetic", "--data", "graphsage=x"], "give one for all, or one WORKLOAD=NAME|DIR for each"),
        (["--data", "graphsage=nowhere"], "no folder 'nowhere'"),
        (["estimate", "--set", "hidden_dim"], "--set hidden_dim: expected KEY=VALUE"),
        (["estimate", "--set", "width=3"], "unknown key 'width'"),
        (["estimate", "--json", "--csv"], "leave one of them out"),
        (["estimate", "--snapshot", "a.pickle"], "a GPU's allocator: give --device cuda, which"),
        (["estimate", "--snapshot", "a.bin"], "--snapshot a.bin: must end with .pickle"),
        (["estimate", "--snapshot", "no/a.pickle"], "a.pickle: its folder does not exist"),
        (["estimate", "--set", "batch_size=auto"], "batch_size auto: only a plan with shares can find it"),
        (["--set", "batch_size=auto", "--packing", "per-trial"], "fills the share of a uniform plan: leave out"),
        (["plan", "--gpus", "2"], "say how much memory each has"),
        (["--resume", "nowhere"], "--resume nowhere: there is no such folder"),
        (["train", "--from", "nowhere"], "--from nowhere: there is no such folder"),
        (["--resume", ".", "--output", "x"], "--resume .: holds no study.json"),
        (["--address", "127.0.0.1:1"], "--address 127.0.0.1:1: nothing listens there"),
        (["fly"], "unexpected extra argument (fly)"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_nothing_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    own_file(tmp_path, SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # whichever Ray other tests share
    assert message in refused(capfd, *arguments, "--device", "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["own.yaml"], "Got unexpected extra argument (own.yaml): see tuner run --help"),
        (["own.py"], "Got unexpected extra argument (own.py): did you mean tuner script own.py, or own:FUNCTION?"),
        (["reslts"], "Got unexpected extra argument (reslts): did you mean tuner results?"),
        (["--mode", "archtecture"], "unknown mode 'archtecture' of workload graphsage: did you mean architecture?"),
        (["--lr", "0.1"], "No such option '--lr': did you mean --set lr=0.1?"),
        (["own:train", "--width=3"], "No such option '--width': did you mean --set width=3?"),
        (["--width"], "No such option '--width': see tuner run --help"),
        (["results", "--lr", "0.1"], "No such option '--lr': see tuner results --help"),
        (["--max-worker", "2"], "No such option '--max-worker': did you mean --max-workers?"),
        (["--n-trial", "2"], "No such option '--n-trial': did you mean --num-samples?"),
        (
            ["--timeout", "soon"],
            "--time-limit soon: must be a time above 0: seconds, or numbers with h, m and s, such as 90s or 1h30m",
        ),
        (["--config", "own.yaml", "--mode", "quick"], "--config and --mode were both given: leave one of them out"),
        (["plan", "--mode", "quick", "--config", "x"], "--config and --mode were both given: leave one of them out"),
    ],
)
def test_what_was_meant_is_said(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert refused(capfd, *arguments) == f"error: {message}"


def test_a_broken_line_of_the_data_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = (folder / "u.data").read_text().splitlines()
    lines[41] = "1\ttwo\t3\t4"
    (folder / "u.data").write_text("\n".join(lines))
    monkeypatch.chdir(folder.parent)
    assert "u.data, line 42" in refused(capfd, "--data", str(folder))


def test_a_dry_run_prints_the_plan_and_stops(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = said(
        capsys,
        "run",
        "--mode",
        "architecture",
        "--data",
        str(folder),
        "--dry-run",
        "--max-workers",
        "1",
    )
    for text in (
        "8\n",
        "ml-small: 40 users, 60 items; 760 training, 40 validation and 200 test ratings",
        ", the largest (traced)",
        "2.0 GB buffer",
        "fit by memory",
        "bounded by --max-workers",
    ):
        assert text in printed
    assert [path.name for path in tmp_path.iterdir()] == ["ml-small"]


def test_estimates_are_printed_as_a_table_json_or_csv(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["estimate", "--data", str(folder), "--device", "cpu", "--set", "hidden_dim=16"]
    table = said(capsys, *common).splitlines()
    assert table[0].split()[0] == "name"
    assert [line.split()[0] for line in table[1:3]] == ["32x2", "64x2"]
    records = json.loads(said(capsys, *common, "--json"))
    rows = pd.read_csv(io.StringIO(said(capsys, *common, "--csv")), keep_default_na=False)
    assert rows.to_dict("records") == records
    assert records[0]["need_gb"] > records[0]["estimated_memory_gb"] > records[0]["context_gb"] > 0
    assert records[0]["method"] == "traced"
    assert [path.name for path in tmp_path.iterdir()] == ["ml-small"]


@pytest.mark.ray
def test_calibration_trains_measures_and_corrects(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, shared_ray: None
) -> None:
    monkeypatch.chdir(tmp_path)
    head, row = said(capsys, "calibrate", "--data", str(folder), "--limit", "1", "--device", "cpu").splitlines()[-2:]
    found = dict(zip(head.split(), row.split(), strict=True))
    assert float(found["after_gb"]) == pytest.approx(float(found["peak_memory_gb"]), rel=0.02)
    assert "calibrated" in said(capsys, "estimate", "--data", str(folder), "--device", "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["ml-small"]


def test_calibration_without_data_ends_with_exit_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert refused(capfd, "calibrate", "--data", "nowhere").startswith("error: no folder 'nowhere'")


def test_help_has_the_common_options_and_the_commands_on_one_screen(tmp_path: Path) -> None:
    run = tune("--help", cwd=tmp_path)
    lines = run.stdout.splitlines()
    assert (run.returncode, run.stderr, lines[0]) == (0, "", "Usage: tuner [COMMAND] [OPTIONS]")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    options, commands = (part.splitlines() for part in run.stdout.split(":\n")[1:3])
    assert [line.split()[0] for line in options if line.startswith("  --")] == common_options()
    assert [line.split()[0] for line in commands if line.startswith("  ")] == sorted(cli.commands)


def common_options() -> list[str]:
    return [param.opts[0] for param in cli.commands["run"].params if getattr(param, "common", False)]


@pytest.mark.parametrize("script", ["tune", "tuner"])
def test_both_scripts_are_this_program(tmp_path: Path, script: str) -> None:
    path = Path(sys.executable).with_name(script)
    run = subprocess.run([path, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert run.stdout.startswith("tuner, version ")


def test_an_option_that_is_given_with_its_default_counts_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def note(settings: Settings) -> None:
        seen.append(set(settings.given()))
        raise InputError("that is all")

    monkeypatch.setattr("tuner.api.run.run_given", note)
    with pytest.raises(InputError, match="that is all"):
        cli.main(["--resume", "out", "--on-oom", "grow"], standalone_mode=False)
    assert seen == [{"resume", "on_oom"}]


def test_a_module_that_closes_the_output_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "closes_output.py").write_text("import sys\nsys.stdout.close()\ndef train(config): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys,
        "argv",
        ["tuner", "run", "--workload", "closes_output:train", "--metric", "loss", "--direction", "min", "--dry-run"],
    )
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capfd.readouterr().err == (
        "error: the standard output is closed: a module or function that ran here must leave sys.stdout open\n"
    )
