"""A study that nobody ran, with one seed and with several."""

from __future__ import annotations

import pytest

from tests.support.generated_study import write_study
from tuner.records.recorded_study import RecordedStudy, open_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> RecordedStudy:
    folder = tmp_path_factory.mktemp("studies") / "forty"
    write_study(folder, 40)
    return open_study(folder)


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> RecordedStudy:
    folder = tmp_path_factory.mktemp("studies") / "seeded"
    write_study(folder, 36, seeds=3)
    return open_study(folder)
