"""The page as a file: nothing in it breaks out, and nothing else is let in."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from tests.support.generated_study import OBJECTIVES, write_study
from tuner.reporting.page.document import page_html
from tuner.reporting.page.parts import json_block
from tuner.reporting.study_view import StudyView, read_study_view


def test_no_text_breaks_out_of_the_json_in_a_page() -> None:
    text = json_block("drawn", json.dumps(["</script><!--<script>&"]))
    assert text.count("<") == 2
    assert json.loads(text.partition(">")[2].removesuffix("</script>")) == ["</script><!--<script>&"]


def test_names_of_users_are_text_wherever_they_stand(tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=alert(1)>'\"$title"
    write_study(tmp_path / "s", 6, name=nasty)
    found = read_study_view(tmp_path / "s", OBJECTIVES, lambda row: f"tune --only {row.name}")
    found = replace(found, name=nasty, record=replace(found.record, command=nasty, data=nasty))
    page = page_html(found)
    assert "<img" not in page.partition("<body>")[2].partition("<script>")[0]
    assert page.count("</script>") == page.count("<script") == page.count('class="plot"') + 4, (
        "colours and three scripts"
    )


def test_a_policy_lets_no_other_script_run_and_nothing_be_loaded(study: StudyView) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page_html(study))
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "connect-src &#x27;none&#x27;" in policy
    assert "unsafe-eval" not in policy
    assert "http" not in policy
