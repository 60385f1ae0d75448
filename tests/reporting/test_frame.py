"""The table that a notebook is given: a DataFrame with more, over a study that nobody ran."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.attempts import attempt
from tests.support.generated_study import write_study
from tuner.errors import InputError
from tuner.records.recorded_study import open_study
from tuner.records.study_record import StudyRecord
from tuner.reporting.frame import StudyFrame, study_frame

Row = dict[str, Any]


def to_frame(rows: list[Row], folder: Path) -> StudyFrame:
    record = StudyRecord(workload="toy", metrics={"toy": "val_loss"})
    (folder / "study.json").write_bytes(record.to_json())
    lines = [json.dumps(attempt(**row).to_line(exact=True)) + "\n" for row in rows]
    (folder / "attempts.jsonl").write_text("".join(lines))
    return study_frame(open_study(folder))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFrame:
    folder = tmp_path_factory.mktemp("frame") / "study"
    write_study(folder, 40, name="<b>wide")
    return study_frame(open_study(folder))


def completed(study: StudyFrame) -> pd.DataFrame:
    return pd.DataFrame(study[study.status == "completed"])


def seeded(name: str, seed: int, loss: float, status: str = "completed") -> Row:
    about = {"trial_id": f"{name}{seed}", "workload": "toy", "name": name, "seed": seed, "status": status}
    return {**about, "attempts": 1, "val_loss": loss if status == "completed" else None}


def test_parts_and_copies_of_the_table_are_of_its_class_and_know_their_study(study: StudyFrame) -> None:
    parts = [study.head(3), study[study.seed == 0], study.copy(), pickle.loads(pickle.dumps(study))]  # noqa: S301
    assert all(isinstance(part, StudyFrame) and part.attrs == study.attrs for part in parts)
    pd.testing.assert_frame_equal(parts[-1], study)


def test_a_notebook_shows_the_columns_that_matter(study: StudyFrame) -> None:
    html = study._repr_html_() or ""
    heads = html.partition("</thead>")[0]
    shown = ["name", "status", "attempts", "val_loss", "test_loss", "epochs", "seconds", "estimated_gb", "peak_gb"]
    assert [heads.index(f">{name}</th>") for name in shown] == sorted(heads.index(f">{name}</th>") for name in shown)
    assert ">hidden_dim</th>" in heads and ">error</th>" in heads and "device" not in heads
    assert f" · best: {study.best['name']}, ".replace("<b>", "&lt;b&gt;") in html and "<b>" not in html
    assert f"40 trials: {len(completed(study))} completed" in html
    assert len(study.columns) > heads.count("</th>"), "all columns remain in the frame"


def test_a_selection_of_columns_is_shown_as_it_is(study: StudyFrame) -> None:
    html = study[["name", "device"]]._repr_html_() or ""
    assert ">device</th>" in html and "val_loss" not in html


def test_a_long_table_is_shown_in_part(tmp_path: Path) -> None:
    html = to_frame([seeded("a", number, 0.5) for number in range(70)], tmp_path)._repr_html_() or ""
    assert html.count("<tr") == 62 and "<td>...</td>" in html and "70 trials" in html


def test_the_best_is_that_of_the_metric_in_any_order(study: StudyFrame) -> None:
    lowest = completed(study).val_loss.min()
    assert study.sort_values("duration_s").best["val_loss"] == lowest
    others = study[study.val_loss != lowest]
    assert others.best["val_loss"] == completed(study).val_loss.nsmallest(2).iloc[1]
    assert "config/hidden_dim" in study.best.index


def test_with_several_seeds_the_best_has_the_smallest_mean(tmp_path: Path) -> None:
    rows = [seeded("lucky", 0, 0.1), seeded("lucky", 1, 0.9), seeded("steady", 0, 0.4), seeded("steady", 1, 0.3)]
    best = to_frame([*rows, seeded("once", 0, 0.2)], tmp_path).best
    assert (best["name"], best["seed"]) == ("steady", 1)


def test_where_no_trial_has_reported_the_metric_there_is_no_best(tmp_path: Path) -> None:
    frame = to_frame([seeded("a", 0, 0.0, "failed")], tmp_path)
    with pytest.raises(InputError, match="no trial of this table has reported val_loss"):
        frame.best  # noqa: B018
    assert "1 trial: 1 failed" in (frame._repr_html_() or "")


def test_a_table_of_no_study_is_refused(study: StudyFrame) -> None:
    elsewhere = study.copy()
    elsewhere.attrs["folder"] = "elsewhere"
    both = pd.concat([study, elsewhere])
    with pytest.raises(InputError, match="does not say its study's folder: use the table that"):
        both.best  # noqa: B018
    with pytest.raises(InputError, match="has no column 'trial_id': use the table with all columns"):
        study[["name"]].best  # noqa: B018
    with pytest.raises(InputError, match="there is no such folder"):
        elsewhere.plot_curves()
    assert ">name</th>" in (elsewhere._repr_html_() or ""), "it is shown as pandas shows it"


def test_curves_end_at_the_last_epoch_and_the_best_are_named(study: StudyFrame) -> None:
    traces = {trace.name: trace for trace in study.plot_curves().data}
    best = traces[study.best["name"].replace("<b>", "&lt;b&gt;")]
    assert (list(best.x), best.showlegend, best.line.width) == (list(range(1, 13)), True, 2.4)
    assert sum(trace.showlegend for trace in traces.values()) == 5


def test_every_completed_trial_is_a_line_and_a_point(study: StudyFrame) -> None:
    done = completed(study)
    lines, points = study.plot_parallel().data, study.plot_metric().data
    assert {trace.customdata[0][0] for trace in lines} == {*done.trial_id}
    lost = len(study) - len(done)  # crosses at the edge
    assert {len(trace.y) for trace in points} == {len(done), lost}


def test_the_timeline_has_a_bar_for_each_attempt_on_each_device(study: StudyFrame) -> None:
    plot = study.plot_timeline()
    bars = [trace for trace in plot.data if trace.type == "bar" and trace.text]
    assert sum(len(bar.x) for bar in bars) == study.attempts.sum()
    assert {text.text for text in plot.layout.annotations if "cuda" in text.text} == {
        f"cuda:{index} (A generated GPU)" for index in range(2)
    }


def test_estimates_stand_against_the_peaks_of_the_table(study: StudyFrame) -> None:
    _, points = study.plot_memory().data
    done = completed(study)
    assert sorted(zip(points.x, points.y, strict=True)) == sorted(
        zip(done.estimated_memory_gb, done.peak_memory_gb, strict=True)
    )


def test_what_matters_and_how_the_search_went_are_plots_too(study: StudyFrame) -> None:
    titles = [plot().layout.title.text for plot in (study.plot_importance, study.plot_contour, study.plot_history)]
    assert titles[0] == "Importance of hyperparameters" and titles[1].startswith("val_loss over ")
    assert titles[2] == "Optimisation history"
    assert study.plot_distribution().layout.title.text == "Distribution of val_loss"
    with pytest.raises(InputError, match="No load was recorded"):
        study.plot_machine()


def test_what_cannot_be_drawn_is_said_in_a_line(tmp_path: Path) -> None:
    write_study(tmp_path / "one", 1)
    frame = study_frame(open_study(tmp_path / "one"))
    for plot in (frame.plot_parallel, frame.plot_metric):
        with pytest.raises(InputError, match="nothing to draw: Only one trial was successful"):
            plot()


def test_plotly_is_imported_only_to_draw() -> None:
    code = "import sys, tuner.reporting.frame; print('plotly' in sys.modules, 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"
