"""The page as a file: nothing in it breaks out, and nothing else is let in."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.generated_study import write_study
from tuner.records.recorded_study import RecordedStudy, open_study
from tuner.reporting.figures.chart import javascript, javascript_name
from tuner.reporting.page.document import Page, library_file, page_html, write_page
from tuner.reporting.page.parts import address, json_block
from tuner.reporting.page.sections import main_html


def test_no_text_breaks_out_of_the_json_in_a_page() -> None:
    text = json_block("drawn", json.dumps(["</script><!--<script>&"]))
    assert text.count("<") == 2
    assert json.loads(text.partition(">")[2].removesuffix("</script>")) == ["</script><!--<script>&"]


def test_names_of_users_are_text_wherever_they_stand(tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=alert(1)>'\"$title"
    write_study(tmp_path / "s", 6, name=nasty)
    found = open_study(tmp_path / "s")
    found = replace(found, name=nasty, record=replace(found.record, command=nasty, data=nasty))
    page = page_html(Page(nasty, main_html(found)))
    assert "<img" not in page.partition("<body>")[2].partition("<script")[0]
    assert page.count("</script>") == page.count("<script") == page.count('class="plot"') + 8, (
        "colours, grammar, rows, details, the library and three scripts"
    )


def test_a_policy_lets_no_other_script_run_and_nothing_be_loaded(study: RecordedStudy) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page_html(Page("s", main_html(study))))
    assert policy.startswith("default-src 'none'; script-src 'nonce-")
    assert "connect-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "http" not in policy


def test_all_pages_of_a_results_folder_share_one_file_of_the_plotting_library(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        write_page(Page("s", "<main></main>"), folder / "report.html", library_file(folder, folder / "report.html"))
        assert f'src="../{javascript_name()}"' in (folder / "report.html").read_text()
    (shared,) = (tmp_path / "results").glob("*.js")
    assert shared.read_text() == javascript()


def test_a_study_elsewhere_has_the_library_in_its_own_folder(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert library_file(tmp_path, page) == tmp_path / javascript_name()
    write_page(Page("s", "<main></main>"), page, library_file(tmp_path, page))
    assert f'src="{javascript_name()}"' in (tmp_path / "report.html").read_text()


def test_where_the_studys_folder_is_read_only_the_library_is_beside_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, page = tmp_path / "results" / "a", tmp_path / "own" / "page.html"
    monkeypatch.setattr("os.access", lambda path, _: "results" not in path.parts or path.name == "a")
    assert library_file(study, page).parent == study
    monkeypatch.setattr("os.access", lambda path, _: "results" not in path.parts)
    assert library_file(study, page).parent == page.parent


def test_a_library_that_another_user_can_change_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "results" / "a"
    study.mkdir(parents=True)
    (study.parent / javascript_name()).write_text(javascript())
    assert library_file(study, study / "report.html").parent == study.parent
    monkeypatch.setattr("os.geteuid", lambda: study.stat().st_uid + 1)
    assert library_file(study, study / "report.html").parent == study


def test_addresses_of_paths_that_are_not_valid_text_can_be_followed() -> None:
    assert address(os.fsdecode(b'st\xff"/a b.html')) == "st%FF%22/a%20b.html"


def test_a_broken_library_is_written_again_and_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / javascript_name()).symlink_to("mine")
    write_page(Page("s", ""), tmp_path / "report.html", tmp_path / javascript_name())
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / javascript_name()).read_text() == javascript()
    (tmp_path / javascript_name()).write_text(javascript()[:-1])
    write_page(Page("s", ""), tmp_path / "report.html", tmp_path / javascript_name())
    assert (tmp_path / javascript_name()).read_text() == javascript()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", javascript_name(), "report.html"]


def test_a_single_file_has_the_library_and_asks_for_no_other(tmp_path: Path) -> None:
    write_page(Page("s", ""), tmp_path / "report.html")
    (packed,) = re.findall('class="packed">([^<]*)</script>', (tmp_path / "report.html").read_text())
    assert gzip.decompress(base64.b64decode(packed)).decode() == javascript()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_librarys_file_is_let_in_by_a_word_that_no_text_in_the_page_can_hold() -> None:
    first, other = (page_html(Page("s", main), library="p.js") for main in ("<p>one</p>", "<p>two</p>"))
    (nonce,) = re.findall(r'<script nonce="([^"]*)" src="p.js">', first)
    assert f"'nonce-{nonce}'" in first
    assert nonce not in other
