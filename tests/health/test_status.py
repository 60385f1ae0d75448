from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tuner
from tuner.health.status import DeviceStatus, StudyStatus, status_text
from tuner.machine.devices import detect_devices
from tuner.machine.leases import LeaseHolder, Share, device_key
from tuner.trial import GB


@pytest.fixture(autouse=True)
def lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseHolder]:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    holder = LeaseHolder("results/one")
    yield holder
    holder.close()


def test_the_studies_on_a_device_are_listed_with_what_they_have_promised(lease: LeaseHolder) -> None:
    key = device_key(detect_devices("cpu")[0])
    with lease.exclusive():
        lease.lease = replace(lease.lease, shares=(Share("t001", key, 3 * GB, 1),))
    found = tuner.status()[-1]
    assert (found.device, found.promised_gb) == ("cpu", 3.0)
    assert found.others_gb is not None and 0 <= found.others_gb <= found.total_gb - found.free_gb
    (study,) = found.studies
    assert (study.name, study.pid, study.trials, study.waits) == ("results/one", os.getpid(), ("t001",), False)


def test_where_no_study_runs_the_devices_are_listed_alone(lease: LeaseHolder) -> None:
    lease.close()
    assert status_text(tuner.status()).splitlines()[-1] == "no study runs"


def test_a_line_for_each_device_and_each_study() -> None:
    study = StudyStatus("results/one", 7, 12.4, ("t001", "t002"), 3.0, waits=True)
    device = DeviceStatus("cuda:0", 16.0, 4.5, 3.0, 8.5, (study,))
    assert status_text([device]).splitlines() == [
        "cuda:0: 4.50 of 16.00 GB free, 3.00 GB reserved for trials, 8.50 GB held by other programs",
        "  results/one (process 7, 12 min): 2 running, 3.00 GB; waits",
    ]
