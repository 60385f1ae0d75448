"""Learning curves."""

from __future__ import annotations

from dataclasses import replace

from tuner.records.epochs import EpochLine
from tuner.reporting.figures.curves import learning_curves, subset
from tuner.reporting.page.sections import main_html
from tuner.reporting.study_view import StudyView


def test_curves_are_the_best_and_others_evenly_by_rank() -> None:
    chosen = subset([str(number) for number in range(1000)], 60)
    assert (len(chosen), chosen[:11], chosen[-1]) == (60, [str(number) for number in range(11)], "980")
    assert subset(["a", "b"], 60) == ["a", "b"]


def test_a_later_attempt_says_what_an_epoch_came_to(study: StudyView) -> None:
    line = EpochLine(trial_id=study.rows[0].trial_id, attempt=2, epoch=3, at=0.0, metrics={"val_loss": 9.0})
    plot = learning_curves(replace(study, epochs=[*study.epochs, line]), "toy").plot
    curve = next(trace for trace in plot.data if trace.customdata[0] == [line.trial_id])
    assert (3, 9.0) in zip(curve.x, curve.y, strict=True)
    assert list(curve.x) == list(range(1, 13))


def test_a_running_trial_has_a_curve_and_is_named(study: StudyView) -> None:
    waiting = replace(study.record, configurations=[*study.record.configurations, {"name": "late <one>"}])
    line = EpochLine(trial_id="t041", attempt=1, epoch=1, at=0.0, metrics={"val_loss": 1.0})
    going = replace(study, record=waiting, epochs=[*study.epochs, line])
    plot = learning_curves(going, "toy").plot
    assert [trace.name for trace in plot.data if trace.customdata[0] == ["t041"]] == ["late &lt;one&gt;"]
    assert "late &lt;one&gt; (after epoch 1)" in main_html(going)


def test_a_result_that_is_not_the_best_of_its_curve_is_explained(study: StudyView) -> None:
    best, *others = study.rows
    own = [line.metrics.get("val_loss") for line in study.epochs if line.trial_id == best.trial_id]

    def caption(value: float | None) -> str:
        row = replace(best, metrics={**best.metrics, "val_loss": value})
        return learning_curves(replace(study, rows=[row, *others]), "toy").caption

    assert "The table has" not in caption(min(value for value in own if value is not None))
    assert caption(0.001).endswith(" The table has 0.001, the value that it returned at its end.")
    line = EpochLine(trial_id=best.trial_id, attempt=9, epoch=99, at=0.0, metrics={"val_loss": 7.0})
    study = replace(study, epochs=[*study.epochs, line])
    assert caption(7.0).endswith(" The table has 7, its value after the last epoch.")
