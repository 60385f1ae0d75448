"""The user's scripts as trials: each in a process of its own."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from tuner.decisions.plan import make_plan
from tuner.errors import InputError, WorkloadError, spelled
from tuner.execution.child import Child, run_in
from tuner.execution.child_executor import ChildExecutor
from tuner.execution.mapped_arrays import pack
from tuner.execution.worker import TrialOptions, WorkerEvent
from tuner.machine.devices import ram_device
from tuner.objective import Objective
from tuner.trial import GB, Config, EpochReport, MemoryEstimate, Outcome, Placement, Question, Trial
from tuner.workloads.command_line import CommandOptions
from tuner.workloads.metrics_files import MetricsFiles
from tuner.workloads.output import Reports
from tuner.workloads.script import Command, Script, WrittenFiles, Wrote, script_of
from tuner.workloads.task import TrainingTask

SAYS = "import argparse, json, os, sys\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n"
SAYS += "lr = p.parse_args().lr\n"


def outcome_of(folder: Path, body: str, limit_bytes: int = 2 * GB) -> tuple[Outcome, list[EpochReport]]:
    """How a trial of this script ends, and what it reports."""
    path = folder / "train.py"
    path.write_text(SAYS + body)
    return outcome_of_words(folder, [str(path), "--lr", "{lr}"], limit_bytes)


def outcome_of_words(
    folder: Path, words: list[str], limit_bytes: int = 2 * GB, how: CommandOptions | None = None, **ends: float
) -> tuple[Outcome, list[EpochReport]]:
    """The same of a script or a command."""
    events = events_of_words(folder, words, limit_bytes, how or CommandOptions(), **ends)
    (ended,) = (event for event in events if isinstance(event, Outcome))
    return ended, [event for event in events if isinstance(event, EpochReport)]


def events_of_words(
    folder: Path, words: list[str], limit_bytes: int, how: CommandOptions, **ends: float
) -> list[WorkerEvent]:
    """All that its process says."""
    script = script_of(words).replaced(options=how, **ends)
    (folder / "checkpoints").mkdir()
    trial = Trial("t001", script.name, "one", {"lr": 0.5}, seed=0)
    placed = Placement(trial, MemoryEstimate.given(1.0), ram_device(), 1.0, limit_bytes, 1)
    options = TrialOptions(checkpoints=folder / "checkpoints", fresh=True)
    tasks = pack({trial.workload: TrainingTask(script, None, objective=Objective("loss"))})
    with closing(Child(tasks, ram_device(), 1, options)) as child:
        return [event for events in run_in(child, placed, options.log("t001")) for event in events]


def test_a_script_reports_by_lines_of_json_and_its_output_is_kept(tmp_path: Path) -> None:
    body = "for epoch in range(2):\n    print(json.dumps({'loss': lr / (epoch + 1), 'note': 'x', 'epoch': epoch}))\n"
    ended, reports = outcome_of(tmp_path, body + "print('done', file=sys.stderr)\n")
    assert (ended.status, ended.metrics) == ("completed", {"loss": 0.25, "best_epoch": 2})
    assert [report.epoch for report in reports] == [0, 1, 2]
    log = (tmp_path / "logs" / "t001.log").read_text()
    assert log.startswith("$ train.py --lr 0.5\n") and "done" in log and json.dumps(0.25) in log


def test_a_script_reports_by_tuner_report(tmp_path: Path) -> None:
    ended, _ = outcome_of(tmp_path, "import tuner\nassert __name__ == '__main__'\ntuner.report(loss=lr)\n")
    assert (ended.status, ended.metrics["loss"]) == ("completed", 0.5)
    assert ended.peak_bytes is not None and ended.peak_bytes > 2**20


def test_a_script_ends_as_one_that_runs_by_itself(tmp_path: Path) -> None:
    body = "import atexit\natexit.register(lambda: print(json.dumps({'loss': lr})))\n"
    body += "sys.stdout.buffer.write(b'raw\\n')\nprint('end')\nsys.exit(0)\n"
    ended, _ = outcome_of(tmp_path, body)
    assert (ended.status, ended.metrics["loss"]) == ("completed", 0.5)
    assert (tmp_path / "logs" / "t001.log").read_text().endswith('raw\nend\n{"loss": 0.5}\n')


def test_a_process_that_outlives_a_script_does_not_hide_its_end(tmp_path: Path) -> None:
    body = "if not os.fork():\n    import time\n    time.sleep(60)\nprint('parent')\nos._exit(3)\n"
    ended, _ = outcome_of(tmp_path, body)
    assert ended.error == "the trial's process ended with exit code 3: its output is in t001.log"
    assert (tmp_path / "logs" / "t001.log").read_text().endswith("parent\n")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ("sys.exit('no data')", "failed", r"it ended with exit code no data: \$ train.py --lr 0.5 \(logs/t001.log\)"),
        ("os._exit(3)", "failed", "ended with exit code 3: its output is in t001.log"),
        ("os.kill(os.getpid(), 9)", "failed", "was killed by SIGKILL"),
        ("print('{\"loss\": 1')", "failed", 'a line of its output is not JSON, and none is a report: {"loss": 1'),
        (
            "print('end')",
            "failed",
            r"without a report: print a line of JSON such as .* metrics_file.*ends with: end$",
        ),
        ("print(json.dumps({'acc': 1, 'epoch': 1}))", "failed", "it reported acc, epoch, but not loss"),
        ("print(json.dumps({'loss': 'low'}))", "failed", "loss is 'low': expected a number"),
        ("raise ValueError('no data')", "failed", r"train failed: ValueError: no data \(train.py, line 5\)"),
        ("x = bytearray(3 << 30)", "out_of_memory", r"out of memory: allowed [\d.]+ [MG]B, in use"),
    ],
)
def test_how_a_script_failed_is_told_in_one_line(tmp_path: Path, body: str, status: str, text: str) -> None:
    ended, _ = outcome_of(tmp_path, body, limit_bytes=2 * GB)
    assert ended.status == status
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(ended.error)


def test_arguments_name_every_key_of_the_space_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(InputError, match=r"its arguments have \{depth\}, but the space has lr"):
        Script(tmp_path / "train.py", ["--depth", "{depth}"]).check_keys(["lr"])
    with pytest.raises(InputError, match=r"its arguments lack lr: add for example --lr \{lr\}"):
        Script(tmp_path / "train.py", []).check_keys(["lr"])
    assert Script(tmp_path / "train.py", ["--batch-size={batch-size}"]).command({"batch-size": 8}) == [
        "--batch-size=8"
    ]
    with pytest.raises(InputError, match=r"missing.py: the script cannot be read: No such file"):
        Script(tmp_path / "missing.py", [])


def test_a_key_that_a_trial_has_not_is_left_out_with_its_flag(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nfrom sklearn.svm import SVC\n")
    script = Script(tmp_path / "train.py", ["--lr={lr}", "--momentum", "{momentum}", "--name", "a {lr}"])
    config: Config = {"lr": 0.1}
    assert script.command(config) == ["--lr=0.1", "--name", "a 0.1"]
    assert script.imports == ("torch", "sklearn")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a=1", "model.lr={model.lr}"], ["a=1", "model.lr=0.5"]),
        (["--n", "{n}", "--lr", "{model.lr}"], ["--n", "-3", "--lr", "0.5"]),
        (["--lr={model.lr}", "{gone}"], ["--lr=0.5"]),
        (["--n", "{n}", "--m", "x{gone}", "-v"], ["--n", "-3", "-v"]),
        (["--a", "--betas", "{gone}", "{gone}"], ["--a"]),
        (["--betas", "{gone}", "{n}"], ["--betas", "-3"]),
    ],
)
def test_only_the_argument_of_a_key_that_a_trial_has_not_is_dropped(
    tmp_path: Path, arguments: list[str], expected: list[str]
) -> None:
    (tmp_path / "train.py").write_text("")
    assert Script(tmp_path / "train.py", arguments).command({"model.lr": 0.5, "n": -3}) == expected


@pytest.mark.parametrize(
    ("arguments", "config", "expected"),
    [
        (["{amp?--amp}", "--lr", "{lr}"], {"amp": True, "lr": None}, ["--amp"]),
        (["--lr", "{lr}", "{amp?--amp}"], {"amp": True, "lr": None}, ["--amp"]),
        (["--lr", "{lr}", "{amp?--amp:--no-amp}"], {"amp": False, "lr": 1}, ["--lr", "1", "--no-amp"]),
        (["--mode", "{amp?fast}", "-v"], {"amp": False}, ["-v"]),
        (["{a?--a}", "{b?--b}", "{c?--c}", "{d?--d}"], {"a": "False", "b": "0", "c": "", "d": "no"}, ["--d"]),
        (["--drop={drop}", "end"], {"drop": None}, ["end"]),
        (["--layers", "{layers}", "x={layers}"], {"layers": [64, "a"]}, ["--layers", "64", "a", 'x=[64, "a"]']),
        (["--more", "{more}"], {"more": {"a": [1, True]}}, ["--more", '{"a": [1, true]}']),
        (["--of", "{of}"], {"of": [[1, 2], [3]]}, ["--of", "[1, 2]", "[3]"]),
    ],
)
def test_flags_null_lists_and_dicts_are_arguments(
    tmp_path: Path, arguments: list[str], config: Config, expected: list[str]
) -> None:
    (tmp_path / "train.py").write_text("")
    script = Script(tmp_path / "train.py", arguments)
    script.check_keys(config)
    assert script.command(config) == expected


def test_a_key_that_no_placeholder_can_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(InputError, match="no placeholder can name '2nd': rename it, such as to lr_2"):
        Script(tmp_path / "train.py", ["{2nd}"]).check_keys(["2nd"])


def test_packages_that_a_module_beside_a_script_imports_are_loaded_before_it_is_seeded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from model import net\n")
    (tmp_path / "model.py").write_text("import layers\n")
    (tmp_path / "layers.py").write_text("import model\nfrom torch import nn\n")
    assert Script(tmp_path / "train.py", []).imports == ("torch",)


def test_each_script_has_a_new_process_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, tuner\ntuner.report(loss=os.getpid())\n")
    script: Any = Script(tmp_path / "train.py", [])
    (tmp_path / "checkpoints").mkdir()
    plan = make_plan([ram_device()], [GB], packing="uniform", buffer_bytes=0, max_workers=1, threads=1)
    trials = [Trial(f"t00{number}", "train", "one", {}, seed=0) for number in (1, 2)]
    processes: list[float] = []
    with closing(ChildExecutor()) as executor:
        executor.open(
            {"train": TrainingTask(script, None, objective=Objective("loss"))}, plan, tmp_path / "checkpoints"
        )
        for trial in trials:
            executor.submit(Placement(trial, MemoryEstimate.given(1.0), ram_device(), 1.0, GB, 1))
        while len(processes) < 2:
            for event, _ in executor.poll(1.0):
                processes += [event.metrics["loss"]] if isinstance(event, Outcome) else []
    assert processes[0] != processes[1]


def test_a_dict_that_is_printed_is_no_report_and_no_fault(tmp_path: Path) -> None:
    ended, _ = outcome_of(tmp_path, "print({'loss': 1})\nimport tuner\ntuner.report(loss=lr)\n")
    assert (ended.status, ended.metrics["loss"]) == ("completed", 0.5)


def test_a_command_reports_by_lines_of_json_of_its_processes(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("import json, sys\nprint(json.dumps({'loss': float(sys.argv[1])}))\n")
    (tmp_path / "run.sh").write_text(f"echo begun\n{sys.executable} {tmp_path}/inner.py $1\necho end >&2\n")
    ended, reports = outcome_of_words(tmp_path, ["bash", str(tmp_path / "run.sh"), "{lr}"])
    assert (ended.status, ended.metrics["loss"], ended.trial.workload) == ("completed", 0.5, "run")
    assert [report.epoch for report in reports] == [0, 1]
    assert (tmp_path / "logs" / "t001.log").read_text().endswith('begun\n{"loss": 0.5}\nend\n')


def test_a_module_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text("import sys\nprint('{\"loss\": ' + sys.argv[2] + '}')\n")
    monkeypatch.chdir(tmp_path)
    ended, _ = outcome_of_words(tmp_path, ["-m", "own", "--lr", "{lr}"])
    assert (ended.status, ended.metrics["loss"], ended.trial.workload) == ("completed", 0.5, "own")


def test_a_command_that_fails_has_its_own_traceback_and_message(tmp_path: Path) -> None:
    body = "def load():\n    raise ValueError('no data')\ntry:\n    load()\nexcept ValueError:\n"
    body += "    import traceback\n    traceback.print_exc()\n    print('Set HYDRA_FULL_ERROR=1')\n    sys.exit(1)\n"
    (tmp_path / "train.py").write_text(SAYS + body)
    words = [sys.executable, str(tmp_path / "train.py"), "--lr", "{lr}"]
    ended, _ = outcome_of_words(tmp_path, words)
    assert (ended.status, ended.error) == ("failed", "it ended with exit code 1: ValueError: no data (logs/t001.log)")
    assert "in load" in ended.traceback and "HYDRA" in ended.traceback and "tuner/" not in ended.traceback


def test_the_traceback_of_a_script_begins_with_its_own_frames(tmp_path: Path) -> None:
    ended, _ = outcome_of(tmp_path, "def load():\n    raise ValueError('no data')\nload()\n")
    first = ended.traceback.splitlines()[1]
    assert first.startswith(f'  File "{tmp_path}/train.py", line 7') and "in load" in ended.traceback


def test_a_command_that_runs_out_of_memory_is_retried_as_one(tmp_path: Path) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    text = f"Traceback (most recent call last):\n  File 'a.py', line 1\n{text}"
    (tmp_path / "train.py").write_text(f"import sys\nsys.exit({text!r})\n")
    ended, _ = outcome_of_words(tmp_path, [sys.executable, str(tmp_path / "train.py")])
    assert (ended.status, ended.error[:29]) == ("out_of_memory", "out of memory: needed 2.00 GB")


def test_what_a_command_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    text = "setsid sleep 60 & echo $! > pid; echo '{\"loss\": 1}'"
    (tmp_path / "run.sh").write_text(text.replace("> pid", f"> {tmp_path}/pid"))
    ended, _ = outcome_of_words(tmp_path, ["bash", str(tmp_path / "run.sh")])
    assert ended.status == "completed"
    processes = [process.info for process in psutil.process_iter(["pid", "status"])]
    assert (int((tmp_path / "pid").read_text()), "sleeping") not in {(one["pid"], one["status"]) for one in processes}


def test_a_program_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: there is no such program: give FILE.py, -m MODULE, or a command"):
        Command(["nowhere", "{lr}"])


SHOWS = "import os, sys\nopen('mine', 'w').write(' '.join([*sys.argv[1:], os.environ['TUNER_SEED']]))\n"
SHOWS += "print('{\"loss\": 1}')\n"


@pytest.mark.parametrize("start", [[], [sys.executable]])
def test_a_script_and_a_command_can_start_in_the_folder_of_the_trial(
    tmp_path: Path, start: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(SHOWS)
    monkeypatch.chdir(tmp_path)
    words = [*start, "train.py", "{trial_dir}", "{trial_id}", "{seed}"]
    ended, _ = outcome_of_words(tmp_path, words, how=CommandOptions(cwd="trial"))
    folder = tmp_path / "trials" / "t001"
    assert (ended.status, (folder / "mine").read_text()) == ("completed", f"{folder} t001 0 0")


def test_a_trial_that_writes_nothing_leaves_no_folder_and_starts_where_the_study_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SHOWS)
    outcome_of_words(tmp_path, ["train.py"])
    assert (tmp_path / "mine").exists() and not list((tmp_path / "trials").iterdir())


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        (r"Accuracy: .*\((\d+)%\)", "Test set: Accuracy: 9/10 (90%)", {"loss": 90.0}),
        (r"(?P<loss>[\d.]+) ppl (?P<ppl>\S+)", "a\r0.4 ppl 9.5 \r0.25 ppl 1e3", {"loss": 0.25, "ppl": 1000.0}),
        (r"epoch (?P<epoch>\d+) loss=(?P<loss>\S+)", "epoch 7 loss=0.25", {"loss": 0.25, "best_epoch": 7}),
    ],
)
def test_a_pattern_finds_the_metrics_in_what_a_script_prints(
    tmp_path: Path, pattern: str, line: str, expected: dict[str, float]
) -> None:
    for start, file in product(([], [sys.executable]), ("stdout", "stderr")):
        (tmp_path / "train.py").write_text(f"import sys\nprint({line!r}, flush=True, file=sys.{file})\n")
        folder = tmp_path / f"{len(start)}{file}"
        folder.mkdir()
        ended, _ = outcome_of_words(
            folder, [*start, str(tmp_path / "train.py")], how=CommandOptions(metric_pattern=pattern)
        )
        assert (ended.status, {"best_epoch": 1, **expected}) == ("completed", ended.metrics)


def test_a_progress_bar_on_standard_error_does_not_hide_a_report(tmp_path: Path) -> None:
    body = "for part in ('\\r 50%', '\\r100%'):\n    print(part, end='', file=sys.stderr, flush=True)\n"
    ended, reports = outcome_of(tmp_path, body + "    print(json.dumps({'loss': lr}))\n")
    assert (ended.status, len(reports)) == ("completed", 3)


def test_a_pattern_that_takes_too_long_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('a' * 40 + 'b')\n")
    ended, _ = outcome_of_words(tmp_path, [str(tmp_path / "train.py")], how=CommandOptions(metric_pattern="(a|a)+$"))
    with pytest.raises(AssertionError, match=r"takes over 1 s for a line of 41 characters: make it simpler"):
        raise AssertionError(spelled(ended.error))


TABLE = "for e in range(2):\n    file.write(f'{e},,{lr / (e + 1)}\\n{e},3.5,\\n')\n    file.flush()\n"
LINES = "for e in range(2):\n    file.write(json.dumps({'loss': lr / (e + 1), 'epoch': e}) + '\\n')\n"
OPENED = "folder = os.environ['TUNER_TRIAL_DIR'] + '/logs'\nos.mkdir(folder)\nfile = open(folder + '/"
EVENTS = "from tensorboardX import SummaryWriter\nwriter = SummaryWriter(os.environ['TUNER_TRIAL_DIR'] + '/runs')\n"
EVENTS += "for e in range(2):\n    writer.add_scalar('loss', lr / (e + 1), e)\nwriter.close()\n"


@pytest.mark.parametrize(
    ("body", "file"),
    [
        (OPENED + "a.csv', 'w')\nfile.write('epoch,train,loss\\n')\n" + TABLE, "logs/*.csv"),
        (OPENED + "a.jsonl', 'w')\n" + LINES + "file.close()\n", "**/a.jsonl"),
        (EVENTS, "runs"),
    ],
)
def test_metrics_are_read_from_files_in_the_trials_folder(tmp_path: Path, body: str, file: str) -> None:
    (tmp_path / "train.py").write_text(SAYS + body)
    words = [str(tmp_path / "train.py"), "--lr", "{lr}"]
    ended, reports = outcome_of_words(tmp_path, words, how=CommandOptions(metrics_file=file))
    more = {"train": 3.5} if ".csv" in file else {}
    assert (ended.status, ended.metrics, len(reports)) == ("completed", {"loss": 0.25, "best_epoch": 2, **more}, 3)


@pytest.mark.parametrize("start", [[], [sys.executable]])
def test_the_last_report_of_a_script_that_fails_is_kept(tmp_path: Path, start: list[str]) -> None:
    body = "print(json.dumps({'epoch': 1, 'loss': lr}), flush=True)\nprint(json.dumps({'epoch': 1, 'acc': 1}))\n"
    (tmp_path / "train.py").write_text(SAYS + body + "raise ValueError('no data')\n")
    ended, reports = outcome_of_words(tmp_path, [*start, str(tmp_path / "train.py"), "--lr", "{lr}"])
    assert (ended.status, reports[-1].epoch, reports[-1].metrics) == ("failed", 1, {"loss": 0.5, "acc": 1.0})


def test_a_report_that_waits_is_seen_while_its_script_computes(tmp_path: Path) -> None:
    body = "import time\nprint(json.dumps({'epoch': 1, 'loss': lr}))\nfrom tuner.workloads.session import current\n"
    body += "while not current().reports:\n    time.sleep(0.1)\nprint('seen')\n"
    ended, _ = outcome_of(tmp_path, body)
    assert ended.status == "completed" and "seen" in (tmp_path / "logs" / "t001.log").read_text()


def test_a_file_with_metrics_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    ended, _ = outcome_of_words(tmp_path, [str(tmp_path / "train.py")], how=CommandOptions(metrics_file="logs/*.csv"))
    assert ended.error == f"no file matches logs/*.csv in {tmp_path}/trials/t001"


def test_a_metric_that_a_file_lacks_is_told_with_the_names_that_it_has(tmp_path: Path) -> None:
    files = MetricsFiles(tmp_path, "**/*.csv")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.csv").write_text("epoch, train\n1,0.5\n")
    session = Mock(metric="loss", reports=0)
    with pytest.raises(WorkloadError, match=r"^logs/a.csv has epoch, train, but not loss$"):
        Reports(session, None, files).end()


def test_a_pattern_that_no_line_matches_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    script = Script(tmp_path / "train.py", []).replaced(options=CommandOptions(metric_pattern="Acc: (.*)"))
    assert spelled(script.remedy("loss")).startswith("no line matches metric_pattern='Acc: (.*)'")


@pytest.mark.parametrize("start", [[], [sys.executable, "-u"]])
def test_a_script_that_does_not_end_is_completed_after_its_epochs_or_its_time(
    tmp_path: Path, start: list[str]
) -> None:
    body = "import time\nfor e in range(10**9):\n    print(json.dumps({'loss': lr - e}))\n"
    body += "    time.sleep(60 * (e == 6))\n"
    (tmp_path / "train.py").write_text(SAYS + body)
    words = [*start, str(tmp_path / "train.py"), "--lr", "{lr}"]
    for number, ends in enumerate(({"most_epochs": 3}, {"most_seconds": 2.0})):
        (tmp_path / str(number)).mkdir()
        ended, reports = outcome_of_words(tmp_path / str(number), words, **ends)
        assert (ended.status, ended.metrics["loss"], len(reports)) == (
            "completed",
            [-1.5, -5.5][number],
            [4, 8][number],
        )


@pytest.mark.parametrize(
    ("suffix", "read"), [(".yaml", "yaml.safe_load"), (".toml", "toml.loads"), (".json", "json.loads")]
)
def test_a_file_with_the_configuration_has_what_its_template_has(tmp_path: Path, suffix: str, read: str) -> None:
    body = f"import json, sys, yaml, tomllib as toml\nfound = {read}(open(sys.argv[1]).read())\n"
    body += "assert found == {'model': {'depth': 2}, 'lr': 0.5}, found\nprint(json.dumps({'loss': found['lr']}))\n"
    (tmp_path / "train.py").write_text(body)
    how = CommandOptions(template={"model": {"depth": 2}, "lr": 9}, suffix=".json")
    ended, _ = outcome_of_words(tmp_path, [str(tmp_path / "train.py"), f"{{config{suffix}}}"], how=how)
    assert (ended.status, ended.error, ended.metrics["loss"]) == ("completed", "", 0.5)
    assert (tmp_path / "trials" / "t001" / f"config{suffix}").exists()


def test_a_file_with_the_configuration_needs_no_other_argument_unless_it_is_a_key(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    script = Script(tmp_path / "train.py", ["{config}"])
    script.check_keys(["lr", "model.hidden"])
    with pytest.raises(InputError, match="its arguments lack lr"):
        script.check_keys(["lr", "config"])


WRITES = "import os\nfor name in ('model.pt', os.environ['TUNER_TRIAL_DIR'] + '/own.pt'):\n    {save}\n"


@pytest.mark.parametrize("save", ["open(name, 'wb').write(b'x')", "import torch; torch.save({}, name)"])
def test_the_files_that_a_script_writes_into_the_current_folder_are_known(
    tmp_path: Path, save: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch, tuner\n" + WRITES.format(save=save) + "tuner.report(loss=1)\n")
    told = events_of_words(tmp_path, ["train.py"], 2 * GB, CommandOptions())
    assert [event.content for event in told if isinstance(event, Question)] == [Wrote(("model.pt",))]


def test_each_trial_that_writes_anothers_file_is_told() -> None:
    files = WrittenFiles()
    remarks = [files.remark(trial, Wrote((path,))) for trial, path in [("a", "x"), ("b", "y"), ("a", "x")]]
    assert remarks == ["", "", ""]
    for trial in "cd":
        assert spelled(files.remark(trial, Wrote(("z" + trial, "x")))).startswith(
            f"a and {trial} both wrote x: to give each trial its own folder"
        )


def rows_of(files: MetricsFiles, *, last: bool = False) -> list[object]:
    return [row["loss"] for row in files.new("loss", last=last)]


def test_rows_are_read_once_also_of_a_file_that_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("loss\n9\n8\n")  # of an earlier attempt
    files = MetricsFiles(tmp_path, "*.csv")
    assert rows_of(files) == []
    read = []
    for text in ("loss\n1\n", "loss\n", "", "loss\n1\n2\n3"):
        path.write_text(text)
        read += rows_of(files)
    assert (read, rows_of(files, last=True)) == ([1, 2], [3])


def test_a_file_outside_of_the_trials_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("loss\n1\n")
    (tmp_path / "own").mkdir()
    files = MetricsFiles(tmp_path / "own", "*.csv")
    (tmp_path / "own" / "link.csv").symlink_to(tmp_path / "a.csv")
    assert rows_of(files) == []


def test_a_process_that_a_script_forks_may_print(tmp_path: Path) -> None:
    body = "file = open(os.environ['TUNER_TRIAL_DIR'] + '/a.csv', 'w')\nfile.write('loss\\n0.5\\n')\nfile.close()\n"
    body += "if not os.fork():\n    print('child', flush=True)\n    os._exit(0)\nos.wait()\n"
    (tmp_path / "train.py").write_text(SAYS + body)
    ended, _ = outcome_of_words(tmp_path, [str(tmp_path / "train.py")], how=CommandOptions(metrics_file="a.csv"))
    assert (ended.status, ended.error, ended.metrics["loss"]) == ("completed", "", 0.5)
