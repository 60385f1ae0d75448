"""The load of the machine over time."""

from __future__ import annotations

from dataclasses import replace

from tests.reporting.studies import rows_of, told, view_of
from tuner.records.machine_log import GpuLine, MachineLine
from tuner.reporting.figures.machine import MOST, machine_load, thinned, without_gaps


def lines(*times: float) -> list[MachineLine]:
    gpus = {"cuda:0": GpuLine(busy=0.9, used_gb=5.0)}
    return [MachineLine(at=at, busy=0.25, ram_gb=8.0, gpus=gpus) for at in times]


def test_cpu_and_gpus_have_a_line_of_load_and_one_of_memory() -> None:
    chart = machine_load(told(view_of(rows_of(val_loss=[1.0])), machine=lines(100, 101, 102)))
    assert chart.plot and len(chart.plot.data) == 4
    assert chart.plot.data[0].x == (0.0, 1.0, 2.0)
    assert chart.caption.startswith(
        "CPU: busy 25% of the time on average, at most 8 GB of RAM in use. cuda:0: busy 90%"
    )


def test_a_mig_instances_line_is_of_its_memory_alone() -> None:
    load = [replace(line, gpus={"cuda:0:1": GpuLine(used_gb=5.0)}) for line in lines(100, 101, 102)]
    chart = machine_load(told(view_of(rows_of(val_loss=[1.0])), machine=load))
    assert " cuda:0:1: at most 5 GB of memory in use." in chart.caption
    assert chart.plot and chart.plot.data[2].y == (None, None, None)
    assert chart.plot.data[3].y == (5.0, 5.0, 5.0)


def test_rare_lines_count_for_the_time_between_them_and_the_most_memory_is_of_all_lines() -> None:
    busy = [replace(line, busy=1.0, ram_gb=2.0, gpus={}) for line in lines(*range(1200))]
    busy[1] = replace(busy[1], ram_gb=30.0)
    idle = [replace(line, busy=0.0, gpus={}) for line in lines(*range(1239, 1239 + 3600, 40))]
    chart = machine_load(told(view_of(rows_of(val_loss=[1.0])), machine=[*busy, *idle]))
    assert chart.caption.startswith("CPU: busy 25% of the time on average, at most 30 GB of RAM")


def test_a_study_without_a_record_says_so() -> None:
    assert "No load was recorded" in machine_load(view_of(rows_of(val_loss=[1.0]))).caption


def test_the_time_before_a_study_is_resumed_is_left_out() -> None:
    assert [line.at for line in without_gaps(lines(0, 1, 2, 5000, 5001))] == [0, 1, 2, 3, 4]
    assert [line.at for line in without_gaps(lines(0, 40, 90))] == [0, 40, 90], "lines of a slow study"


def test_a_long_study_is_drawn_with_few_points_and_its_end() -> None:
    found = thinned(lines(*range(10_000)), MOST)
    assert len(found) <= MOST and found[-1].at == 9999
