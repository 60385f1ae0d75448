"""A study that nobody ran, with one seed and with several."""

from __future__ import annotations

import pytest

from tests.support.generated_study import OBJECTIVES, write_study
from tuner.reporting.study_view import StudyView, read_study_view


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    folder = tmp_path_factory.mktemp("studies") / "forty"
    write_study(folder, 40)
    return read_study_view(folder, OBJECTIVES, lambda row: f"again {row.name}")


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    folder = tmp_path_factory.mktemp("studies") / "seeded"
    write_study(folder, 36, seeds=3)
    return read_study_view(folder, OBJECTIVES, lambda row: f"again {row.name}")
