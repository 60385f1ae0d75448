"""The report's page of a study with several seeds, without a browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.generated_study import METRICS, write_study
from tuner.records.seed_statistics import averages, summary
from tuner.reporting.figures.coordinates import parallel_coordinates
from tuner.reporting.figures.effects import against_each
from tuner.reporting.page.sections import main_html
from tuner.reporting.page.tables import configurations_table
from tuner.reporting.result_tables import interval_text
from tuner.reporting.study_view import StudyView, read_study_view


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    folder = tmp_path_factory.mktemp("studies") / "seeded"
    write_study(folder, 36, seeds=3)
    return read_study_view(folder, METRICS, lambda row: f"again {row.name}")


def test_the_head_is_the_best_configuration_by_mean_and_the_best_single_trial_has_its_seed(seeded: StudyView) -> None:
    best, *others = averages(seeded.rows, "val_loss")
    assert best.verdict == "best"
    assert best.interval
    lucky = seeded.rows[0]
    text = main_html(seeded)
    assert "Best trial" not in text
    assert f'<p class="name">{best.name}</p>' in text
    assert f'<dd class="big">{best.interval.mean:.4f} ± {best.interval.half_width:.4f}</dd>' in text
    assert f'<p class="finding">{summary([best, *others])}.</p>' in text
    assert f"Best single trial: <strong>{lucky.name} (seed {lucky.seed})</strong>, val_loss" in text


def test_configurations_have_the_means_and_verdicts_that_results_have(seeded: StudyView) -> None:
    table = configurations_table(seeded.rows, "val_loss", "configurations", "Configurations")
    found = averages(seeded.rows, "val_loss")
    lines = [line for line in table.splitlines() if line.startswith("<tr")]
    for each, line in zip(found, lines, strict=True):
        assert each.interval
        assert f">{each.name}</th>" in line
        assert f'data-sort="{each.interval.mean}">{interval_text(each.interval)}<td' in line
        assert f">{len(each.values)}/3<td" in line
        assert ("cannot be told from the best" in line) == (each.verdict == "=")
    assert {each.verdict for each in found} == {"best", "=", "worse"}


def test_comparisons_of_several_seeds_are_of_means_and_the_seed_is_no_axis(seeded: StudyView) -> None:
    whole, each = parallel_coordinates(seeded, "toy"), against_each(seeded, "toy")
    labels = ["hidden_dim", "num_layers", "dropout", "lr", "batch_size"]
    assert whole.plot and [*whole.plot.layout.xaxis.ticktext] == [
        f"<b>{each}</b>" for each in [*labels, "mean val_loss"]
    ]
    assert [chart.title for chart in each] == labels
    means = [found.interval.mean for found in averages(seeded.rows, "val_loss") if found.interval]
    lines = dict(about for trace in reversed(whole.plot.data) for about in trace.customdata if about)
    assert list(lines.values()) == pytest.approx(means, abs=1e-6)
    assert whole.caption.startswith("12 configurations, each a line")
    done = [[row.trial_id, row.metrics["val_loss"]] for row in seeded.rows if row.status == "completed"]
    trials = [chart.plot.data[0] for chart in each if chart.plot]
    assert [[*trace.customdata] for trace in trials] == [done] * len(labels)
    assert {trace.hovertemplate.partition("<br>")[2][:9] for trace in trials} == {"val_loss "}
    assert {*lines} <= {*seeded.trial_names}


def test_seeds_of_one_configuration_are_not_compared_and_said_to_be_so(seeded: StudyView) -> None:
    rows = [row for row in seeded.rows if row.name == "width-8"]
    one = replace(seeded, rows=rows)
    assert "Only one configuration has ended well" in parallel_coordinates(one, "toy").caption
    text = main_html(one)
    assert "Means of 3 of 3 seeds" in text
    assert "cannot be told from the best" not in text
