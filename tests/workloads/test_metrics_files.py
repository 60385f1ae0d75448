"""Reports that are put together from several lines or files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import regex

from tuner.workloads.metrics_files import QUIET_SECONDS, Assembly, MetricsFiles
from tuner.workloads.output import Reports


class Told:
    """A session that keeps what it is told."""

    metric, trial_id, seed = "loss", "t001", 0

    def __init__(self) -> None:
        self.said: list[tuple[int | None, dict[str, Any]]] = []

    @property
    def reports(self) -> int:
        return len(self.said)

    def report(self, metrics: dict[str, Any], epoch: int | None = None) -> None:
        self.said.append((epoch, metrics))


def printed(*lines: str, pattern: str | None = None) -> list[tuple[int | None, dict[str, Any]]]:
    """What is reported of these lines."""
    told: Any = Told()
    reports = Reports(told, regex.compile(pattern) if pattern else None)
    for line in lines:
        reports.feed(f"{line}\n")
    reports.end()
    return list(told.said)


def made(*rows: tuple[dict[str, Any], str, int]) -> Iterator[dict[str, object]]:
    """The reports of rows with their writers and places."""
    whole = Assembly("loss", keeps=True)
    for row, writer, place in rows:
        yield from whole.add(row, writer, place)
    yield from whole.ended(last=True)


def test_lines_that_name_the_same_epoch_are_one_report() -> None:
    lines = [f'{{"epoch": {epoch}, {rest}}}' for epoch in (3, 4) for rest in (f'"loss": {epoch}', f'"acc": {epoch}')]
    assert printed(*lines) == [(3, {"loss": 3, "acc": 3}), (4, {"loss": 4, "acc": 4})]
    assert printed(*reversed(lines)) == [(4, {"acc": 4, "loss": 4}), (3, {"acc": 3, "loss": 3})]


def test_a_value_of_an_epoch_that_was_reported_is_left_out_and_waited_for_from_then_on() -> None:
    told: Any = Told()
    reports = Reports(told)
    reports.feed('{"epoch": 1, "loss": 1}\n{"epoch": 2, "loss": 2}\n')
    assert told.said == [(1, {"loss": 1}), (2, {"loss": 2})], "at once, as earlier epochs had no more"
    reports.feed('{"epoch": 2, "acc": 2}\n')
    reports.feed('{"epoch": 3, "loss": 3}\n')
    assert len(told.said) == 2
    reports.feed('{"epoch": 3, "acc": 3}\n')
    assert told.said[2:] == [(3, {"loss": 3, "acc": 3})]


def test_lines_below_a_heading_are_of_its_epoch_and_others_stand_for_themselves() -> None:
    pattern = r"Epoch (?P<epoch>\d+)|loss (?P<loss>\S+)|acc (?P<acc>\S+)"
    lines = ["Epoch 1/2", "loss 0.5", "acc 0.8", "Epoch 2/2", "acc 0.9", "loss 0.4"]
    assert printed(*lines, pattern=pattern) == [(1, {"loss": 0.5, "acc": 0.8}), (2, {"acc": 0.9, "loss": 0.4})]
    assert printed("acc 0.1", *lines[1:3], *lines[4:], pattern=pattern) == [
        (None, {"loss": 0.5}),
        (None, {"loss": 0.4}),
    ]


def test_a_printed_heading_counts_unless_rows_say_where_they_belong(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ['{"acc": 0.8}', '{"loss": 0.5}', '{"acc": 0.9}', '{"loss": 0.4}']
    expected = [(1, {"acc": 0.8, "loss": 0.5}), (2, {"acc": 0.9, "loss": 0.4})]
    for heading in ("Epoch {}", "--- EPOCH [{}/2] ---", "epoch: {} of 2"):
        assert printed(heading.format(1), *rows[:2], heading.format(2), *rows[2:]) == expected
    pattern = r"loss (?P<loss>\S+)|acc (?P<acc>\S+)"
    assert (
        printed("Epoch 1/2", "loss 0.5", "acc 0.8", "Epoch 2/2", "acc 0.9", "loss 0.4", pattern=pattern) == expected
    )
    steps = [f'{{"step": {step}, "{name}": {step}}}' for step in (1, 2) for name in ("acc", "loss")]
    assert printed("Epoch 1", *steps) == printed(*steps[:2], "Epoch 2", *steps[2:]) == printed(*steps)
    assert printed("Epoch 1 took 3 s", "Epoch 1.5", rows[1], "Epoch 2: 50%", rows[3]) == [
        (None, {"loss": 0.5}),
        (None, {"loss": 0.4}),
    ]
    assert not capsys.readouterr().out


def test_what_no_report_has_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    printed(*['{"acc": 0.8, "lr": 1}', '{"loss": 0.5, "lr": 1}'] * 2)
    assert (
        capsys.readouterr().out
        == "tuner: no report has acc: print it in the line of loss, or name the epoch in both\n"
    )


def test_each_value_of_the_metric_is_a_report_and_whole_epochs_count() -> None:
    lines = ['{"epoch": 1.0, "loss": 4}', '{"epoch": 1.0, "loss": 3}', '{"epoch": 1.5, "loss": 2}', '{"loss": 1}']
    assert printed(*lines) == [(1, {"loss": 4}), (None, {"loss": 3}), (None, {"loss": 2}), (None, {"loss": 1})]


def test_a_first_report_does_not_wait_for_ever() -> None:
    told: Any = Told()
    now = [0.0]
    reports = Reports(told, clock=lambda: now[0])
    reports.feed('{"epoch": 1, "loss": 1}\n')
    assert not told.said
    now[0] += QUIET_SECONDS
    reports.feed("")
    assert told.said == [(1, {"loss": 1})]


def test_values_of_several_writers_belong_to_their_step_and_never_to_an_earlier_one() -> None:
    rows = [({"lr": 9}, "a", 1), ({"loss": 1}, "a", 2), ({"acc": 1}, "b", 2), ({"lr": 8}, "a", 3)]
    rows += [({"acc": 2}, "b", 4), ({"loss": 2}, "a", 4), ({"loss": 3}, "a", 6), ({"lr": 7}, "a", 7)]
    assert list(made(*rows)) == [
        {"lr": 9, "loss": 1, "acc": 1},
        {"lr": 8, "acc": 2, "loss": 2},
        {"lr": 8, "loss": 3},
    ]


def test_a_second_training_in_a_trial_has_values_of_its_own() -> None:
    first = [({name: step}, "a", step) for step in (1, 2) for name in ("loss", "acc")]
    second = [({name: -step}, "b", step) for step in (1, 2) for name in ("acc", "loss")]
    assert [row["acc"] for row in made(*first, *second)] == [1, 2, -1, -2]
    waits = [({"loss": step, "epoch": step, **more}, "a", step) for step, more in ((1, {"acc": 1}), (2, {}))]
    assert [row["epoch"] for row in made(*waits, *waits)] == [1, 2, 1, 2]


def test_a_table_with_gaps_has_a_report_for_each_epoch(tmp_path: Path) -> None:
    files = MetricsFiles(tmp_path, "*.csv")
    text = "epoch,step,acc,loss,train\n0,4,,,3\n0,9,,0.5,\n0,9,0.8,,\n0,9,,,2\n1,14,,,1\n1,19,,0.4,\n1,19,0.9,,\n"
    (tmp_path / "metrics.csv").write_text(text)
    expected = [{"epoch": 0, "step": 9, "train": 2, "loss": 0.5, "acc": 0.8}]
    expected += [{"epoch": 1, "step": 19, "train": 1, "loss": 0.4, "acc": 0.9}]
    assert list(files.new("loss")) == expected


def test_event_files_of_several_folders_are_put_together_by_step(tmp_path: Path) -> None:
    from tensorboardX import SummaryWriter

    files = MetricsFiles(tmp_path, "runs")
    writer = SummaryWriter(str(tmp_path / "runs"))
    for step in (1, 2):
        writer.add_scalar("loss", 1 / step, step)
        writer.add_scalars("acc", {"val": step}, step)
        writer.add_scalar("epoch", 2 * step, step)
    writer.close()
    found = list(files.new("loss", last=True))
    assert found == [{"loss": 1.0, "acc": 1.0, "epoch": 2}, {"loss": 0.5, "acc": 2.0, "epoch": 4}]


def test_a_tag_of_several_folders_can_be_named_with_its_folder(tmp_path: Path) -> None:
    from tensorboardX import SummaryWriter

    files = MetricsFiles(tmp_path, "runs")
    with SummaryWriter(str(tmp_path / "runs")) as writer:
        for step in (1, 2):
            writer.add_scalars("loss", {"val": step, "train": -step}, step)
    assert list(files.new("val/loss", last=True)) == [{"val/loss": step, "loss": -step} for step in (1, 2)]
