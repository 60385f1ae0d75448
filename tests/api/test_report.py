"""``tune report`` and ``tuner.report``: the file, the server, and what is refused."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

import tuner
from tests.study.test_study import study as run_toy
from tests.support.generated_study import write_study
from tuner.api import report as report_module
from tuner.api.report import load_study, page_of
from tuner.errors import InputError
from tuner.machine.interrupts import INSISTED
from tuner.objective import Objective
from tuner.records.journal import open_locked
from tuner.reporting.figures.chart import javascript_name
from tuner.reporting.page.document import Page
from tuner.reporting.serving import LivePage, make_server
from tuner.spec.spelling import program

pytestmark = pytest.mark.usefixtures("writes_pages")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_study(tmp_path / "results" / "one", 5)
    return tmp_path / "results" / "one"


def test_the_page_is_written_into_the_studys_folder_or_where_asked(folder: Path, tmp_path: Path) -> None:
    assert tuner.write_report(folder) == folder / "report.html"
    assert tuner.write_report(folder, output=tmp_path / "page.html") == tmp_path / "page.html"
    assert (tmp_path / "page.html").read_text().count(f'src="results/{javascript_name()}"') == 1


def test_the_newest_study_is_taken_where_none_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path / "results" / "a-newer", 2)
    os.utime(folder / "study.json", (1, 1))
    monkeypatch.chdir(tmp_path)
    assert tuner.write_report() == Path("results/a-newer/report.html")


def test_several_studies_are_one_page_beside_the_first(folder: Path) -> None:
    write_study(folder.parent / "two", 4)
    page = tuner.write_report([folder, folder.parent / "two"])
    assert page == folder.parent / "compared.html"
    text = page.read_text()
    assert "<h1>one · two</h1>" in text and f'src="{javascript_name()}"' in text
    assert "its page" not in text, "there is none yet"
    with pytest.raises(InputError, match="watch follows one study, and 2 were given"):
        tuner.write_report([folder, folder.parent / "two"], watch=True)


def test_studies_whose_folders_have_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    folders = [tmp_path / name / "s" for name in ("monday", "tuesday")]
    for folder in folders:
        write_study(folder, 4)
    assert "<h1>monday · tuesday</h1>" in tuner.write_report(folders, output=tmp_path / "both.html").read_text()


def test_a_study_given_twice_is_one(folder: Path) -> None:
    assert tuner.write_report([folder / ".." / folder.name, folder]) == folder / "report.html"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directory": "nowhere"}, "report nowhere: there is no such folder"),
        ({"directory": "results"}, "report results: holds no study.json"),
        ({"output": "results"}, "output='results': is a folder"),
        ({"output": "no/page.html"}, "output='no/page.html': there is no folder no"),
        ({"port": 1}, "port=1: has no effect without watch"),
        ({"port": 70000, "watch": True}, "port=70000: must be at most 65535"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        tuner.write_report(**{"directory": "results/one", **options})
    assert not list(tmp_path.rglob("*.html*"))


@pytest.mark.parametrize("name", ["results/one/attempts.jsonl", "results/one/study.json", "README.md", "empty"])
def test_what_is_no_earlier_page_is_never_written_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for new in ("README.md", "empty"):
        (tmp_path / new).write_text("mine" * (new != "empty"))
    before = Path(name).read_bytes()
    for options in ({}, {"watch": True}):
        with pytest.raises(InputError, match=f"^output={name!r}: cannot be written: it exists and is not a page of"):
            tuner.write_report(folder, output=name, **options)
    assert Path(name).read_bytes() == before


def test_a_page_is_written_over_an_earlier_one(folder: Path) -> None:
    tuner.write_report(folder)
    (folder / "attempts.jsonl").write_text("")
    assert "5, all interrupted" in tuner.write_report(folder).read_text()


def test_no_study_at_all_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="results/ holds no study: run one, or give the folder of a study"):
        tuner.write_report()


def test_a_port_in_use_is_one_line(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port={port}: is in use: give another one"):
            tuner.write_report(folder, watch=True, port=port)


def test_a_study_from_before_metrics_were_kept_still_gives_a_page(folder: Path) -> None:
    about = json.loads((folder / "study.json").read_text())
    del about["metrics"]
    (folder / "study.json").write_text(json.dumps(about))
    assert load_study(folder).objectives == {"toy": Objective("val_loss")}


def test_half_a_line_at_the_end_of_the_journal_is_left_out_and_told(folder: Path) -> None:
    before = load_study(folder).rows
    with (folder / "attempts.jsonl").open("a") as file:
        file.write('{"trial_id": "t00')
    assert load_study(folder).rows == before
    with pytest.warns(UserWarning, match=r"attempts\.jsonl: line 6 is incomplete; left out$"):
        page = tuner.write_report(folder).read_text()
    assert "/attempts.jsonl: line 6 is incomplete; left out</p>" in page


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with make_server(LivePage(folder, lambda: page_of(load_study(folder))), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def get(address: str, host: str | None = None) -> str:
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def test_a_live_page_changes_with_the_study(folder: Path, address: str) -> None:
    version = get(f"{address}/version")
    assert f'data-live="{version}"' in get(f"{address}/")
    assert "all completed" in get(f"{address}/main")
    lines = (folder / "attempts.jsonl").read_text().splitlines(keepends=True)
    (folder / "attempts.jsonl").write_text("".join(lines[:2]))
    assert get(f"{address}/version") != version
    assert "3 interrupted" in get(f"{address}/main"), "nobody writes the study"
    with open_locked(folder / "attempts.jsonl"):
        assert get(f"{address}/version").endswith("open")
        assert "3 running" in get(f"{address}/main")


def test_only_those_who_name_this_machine_are_answered(address: str) -> None:
    for path, host, code in (("/", "evil.example", 403), ("/", "[::1", 403), ("/../secret", None, 404)):
        with pytest.raises(urllib.error.HTTPError, match=f"HTTP Error {code}"):
            get(address + path, host)
    assert get(f"{address}/version", "localhost:1")


@pytest.mark.parametrize(
    ("error", "said"),
    [(InputError("no such"), "no such"), (KeyError("lr\n"), "unexpected KeyError: 'lr\\n': please report it")],
)
def test_what_goes_wrong_with_a_page_is_a_line_in_it(
    folder: Path, error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def load() -> Page:
        raise error

    with make_server(LivePage(folder, load), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with pytest.raises(urllib.error.HTTPError, match="HTTP Error 500") as caught:
            get(f"http://127.0.0.1:{server.server_port}/")
        assert caught.value.read().decode() == said
        server.shutdown()
        thread.join()
    assert capsys.readouterr() == ("", "")


def test_an_answer_that_cannot_be_sent_leaves_no_traceback(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> Page:
        raise AssertionError

    with make_server(LivePage(folder, load), 0) as server, socket.socket() as request:
        for error in (BrokenPipeError(), OSError("no\nroom")):
            try:
                raise error
            except OSError:
                server.handle_error(request, ("127.0.0.1", 1))
    assert capsys.readouterr().err == "unexpected OSError: no room: please report it\n"


def test_ctrl_c_ends_the_server_with_exit_code_0_and_the_page_is_written(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tuner", "report", str(folder), "--watch", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert "<h1>one</h1>" in get(address)
        process.send_signal(signal.SIGINT)
        told, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert told.endswith(f"report: {folder}/report.html\n")


def test_a_study_ends_with_its_page_unless_it_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_toy(tmp_path / "with", {"name": "a"}, {"name": "b", "lr": 0.01}, report=True)
    told = capsys.readouterr().out
    assert f"report: {tmp_path}/with/report.html" in told
    assert f"live page  {program()} report {tmp_path}/with --watch\n" in told
    text = (tmp_path / "with" / "report.html").read_text()
    assert "tuner.load_best(" in text
    assert ">Timeline</h3>" in text
    run_toy(tmp_path / "without", {"name": "a"}, report=False)
    assert not (tmp_path / "without" / "report.html").exists()
    assert "report" not in capsys.readouterr().out


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """No file gets longer than so many bytes: the page's does not fit, what else a study writes does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_for_the_page_costs_a_line_and_not_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with full_disk(1_000_000):
        assert run_toy(tmp_path / "out", {"name": "a"}, report=True).exit_code == 0
        with pytest.raises(InputError, match=r"report\.html': cannot be written: File too large: give another file"):
            tuner.write_report(tmp_path / "out")
    told = capsys.readouterr().out
    again = f"{program()} report {tmp_path}/out tries again"
    assert f"no report: File too large; {again}\n" in told
    assert f"results: {tmp_path}/out/results.csv\nbest: a" in told
    assert not list((tmp_path / "out").glob("report.html*"))


@pytest.mark.parametrize("signals", [1, INSISTED])
def test_ctrl_c_while_the_page_is_written_leaves_it_whole_or_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: int
) -> None:
    whole = Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        for _ in range(signals if path.name.startswith("report.html") else 0):
            signal.raise_signal(signal.SIGINT)
        return whole(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt) if signals == INSISTED else nullcontext():
        assert run_toy(tmp_path / "out", {"name": "a"}, report=True).exit_code == 0
    assert [path.name for path in (tmp_path / "out").glob("report*")] == ["report.html"] * (signals < INSISTED)
    assert "completed" in (tmp_path / "out" / "results.csv").read_text()


def test_a_page_that_cannot_be_written_costs_a_line_and_not_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no\nway")

    monkeypatch.setattr("tuner.reporting.page.document.write_page", broken)
    assert run_toy(tmp_path / "out", {"name": "a"}, report=True).exit_code == 0
    told = capsys.readouterr().out
    again = f"{program()} report {tmp_path}/out tries again"
    assert f"no report: ValueError: no way; {again}\n" in told
    assert f"results: {tmp_path}/out/results.csv\nbest: a" in told


def test_a_study_is_read_once_for_its_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    whole = report_module.load_study
    monkeypatch.setattr(report_module, "load_study", lambda path: (read.append(path), whole(path))[1])
    monkeypatch.setattr(report_module, "main_html", lambda *_: "")
    tuner.write_report(folder)
    assert read == [folder]
