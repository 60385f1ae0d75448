"""``run``: what ``tuner`` does in a terminal."""

from __future__ import annotations

from tuner.spec.options import public
from tuner.spec.settings import Settings
from tuner.study.prerequisites import train_prerequisites
from tuner.study.result import StudyResult
from tuner.study.select import select
from tuner.study.study import run_study


@public(Settings)
def run(settings: Settings) -> StudyResult:
    """Tunes a workload: what ``tuner`` does in a terminal.

    An object that was the ``workload`` or the ``search`` of a study must be given again to ``resume`` it.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, the folder can no longer be written, or every device is lost.
    """
    return run_given(settings, from_python=True)


def run_given(settings: Settings, *, from_python: bool = False) -> StudyResult:
    """What ``run`` does; beside ``resume`` the options that were given replace the study's own."""
    return run_study(train_prerequisites(select(settings, from_python=from_python)))
