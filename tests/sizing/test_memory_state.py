"""The line in the log for where memory stands."""

from __future__ import annotations

import logging

import pytest

from tuner import log_memory_state
from tuner.errors import InputError
from tuner.machine.devices import ram_device
from tuner.trial import GB, MB


def test_the_cpu_s_state_is_logged_and_returned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tuner"):
        state = log_memory_state("after epoch 3", "cpu")
    assert list(state) == ["resident", "peak", "free", "total"]
    assert 10 * MB < state["resident"] <= state["peak"] < state["total"] == ram_device().total_bytes
    (record,) = caplog.records
    assert record.getMessage().startswith(f"memory after epoch 3: resident={state['resident'] / GB:.2f}GB peak=")
    assert (record.name, record.levelname) == ("tuner", "INFO")


def test_a_process_without_a_gpu_logs_its_ram() -> None:
    assert "resident" in log_memory_state()


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "mps"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(InputError, match=f"device='{device}'.*give cpu, cuda or cuda:N"):
        log_memory_state(device=device)
