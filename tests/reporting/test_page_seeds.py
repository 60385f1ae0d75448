"""The report's page of a study with several seeds, without a browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.generated_study import METRICS, write_study
from tuner.records.seed_statistics import averages, summary
from tuner.reporting.page.configurations import configurations_table
from tuner.reporting.page.coordinates import against_each, parallel_coordinates
from tuner.reporting.page.document import main_html
from tuner.reporting.page.study import PageStudy, read_page_study
from tuner.reporting.seeds import interval_text


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> PageStudy:
    folder = tmp_path_factory.mktemp("studies") / "seeded"
    write_study(folder, 36, seeds=3)
    return read_page_study(folder, METRICS, lambda row: f"again {row['name']}")


def test_the_head_is_the_best_configuration_by_mean_and_the_best_single_trial_has_its_seed(seeded: PageStudy) -> None:
    best, *others = averages(seeded.rows, "val_loss")
    assert best.verdict == "best"
    assert best.interval
    lucky = seeded.rows[0]
    text = main_html(seeded)
    assert "Best trial" not in text
    assert f'<p class="name">{best.name}</p>' in text
    assert f'<dd class="big">{best.interval.mean:.4f} ± {best.interval.half_width:.4f}</dd>' in text
    assert f'<p class="said">{summary([best, *others])}.</p>' in text
    assert f"Best single trial: <strong>{lucky['name']} (seed {lucky['seed']})</strong>, val_loss" in text


def test_configurations_have_the_means_and_verdicts_that_results_have(seeded: PageStudy) -> None:
    table = configurations_table(seeded.rows, "val_loss", "configurations")
    found = averages(seeded.rows, "val_loss")
    lines = [line for line in table.splitlines() if line.startswith("<tr")]
    for each, line in zip(found, lines, strict=True):
        assert each.interval
        assert f">{each.name}</th>" in line
        assert f'data-value="{each.interval.mean}">{interval_text(each.interval)}<td' in line
        assert f">{len(each.values)}/3<td" in line
        assert ("cannot be told from the best" in line) == (each.verdict == "=")
    assert {each.verdict for each in found} == {"best", "=", "worse"}


def test_comparisons_of_several_seeds_are_of_means_and_the_seed_is_no_axis(seeded: PageStudy) -> None:
    whole, each = parallel_coordinates(seeded.rows, "val_loss"), against_each(seeded.rows, "val_loss")
    assert whole.data
    labels = ["hidden_dim", "num_layers", "dropout", "lr", "batch_size"]
    assert [axis["label"] for axis in whole.data["axes"]] == [*labels, "mean val_loss"]
    assert [figure.title for figure in each] == labels
    means = [found.interval.mean for found in averages(seeded.rows, "val_loss") if found.interval]
    assert whole.data["values"] == pytest.approx(means, abs=1e-6)
    assert whole.caption.startswith("12 configurations, each a line")
    done = [row for row in seeded.rows if row["status"] == "completed"]
    for figure in each:
        assert figure.data
        assert [(trial, value) for _, _, trial, value in figure.data["trials"]] == [
            (row["trial_id"], row["val_loss"]) for row in done
        ]
    assert {*whole.data["ids"]} <= {*seeded.trial_names}


def test_seeds_of_one_configuration_are_not_compared_and_said_to_be_so(seeded: PageStudy) -> None:
    rows = [row for row in seeded.rows if row["name"] == "width-8"]
    assert "Only one configuration has ended well" in parallel_coordinates(rows, "val_loss").caption
    text = main_html(replace(seeded, rows=rows))
    assert "Means of 3 of 3 seeds" in text
    assert "cannot be told from the best" not in text
