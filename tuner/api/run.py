"""``run``: what ``tune`` does in a terminal."""

from __future__ import annotations

from pathlib import Path
from types import NoneType

from tuner.errors import ParameterError, option
from tuner.records.study_record import UNKNOWN, StudyRecord, read_study
from tuner.spec.options import public
from tuner.spec.settings import UP_FRONT, Settings
from tuner.study.live_search import LiveSearch
from tuner.study.prerequisites import train_prerequisites
from tuner.study.repeat import command
from tuner.study.result import StudyResult
from tuner.study.resumed_options import resumed
from tuner.study.searching import SELECTION, choose_searched, same_selection
from tuner.study.selection import choose, chosen_before
from tuner.study.stored_options import CALL, is_object, plainly, to_stored
from tuner.study.study import run_study
from tuner.workloads.lookup import specs_of
from tuner.workloads.task import Selection


@public(Settings)
def run(settings: Settings) -> StudyResult:
    """Tunes a workload: what ``tune`` does in a terminal.

    An object that was the ``workload`` or the ``search`` of a study must be given again to ``resume`` it.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, the folder can no longer be written, or every device is lost.
    """
    return run_given(settings, from_python=True)


def run_given(settings: Settings, *, from_python: bool = False) -> StudyResult:
    """What ``run`` does.

    Args:
        settings: the study's; beside ``resume`` those that were given replace the study's own.
        from_python: the user called ``run``.

    Raises:
        InputError: as ``run``.
        ExecutionError: as ``run``.
    """
    settings, study = plainly(settings), UNKNOWN
    if settings.resume:
        study = read_study(Path(settings.resume), option("resume", settings.resume))
        settings = resumed(study, settings, from_python=from_python)
    selections, label, live = _choices(settings, study)
    called = _command(settings)
    selections, settings = train_prerequisites(selections, settings, command=called, resumable=True)
    return run_study(
        selections,
        settings,
        label=label,
        command=called,
        options=to_stored(settings),
        shows_end=True,
        from_python=from_python,
        live=live,
    )


def _choices(settings: Settings, study: StudyRecord) -> tuple[list[Selection], str, LiveSearch | None]:
    """What to try of each workload, what the list is called, and the search that adds to it.

    What a study tried, if nothing else is asked for.
    """
    if settings.search is None:
        for name in ("space", "num_samples"):
            if getattr(settings, name) is not None:
                raise ParameterError(name, getattr(settings, name), f"has no effect without {option('search')}")
    of_list = settings.search in (None, *UP_FRONT)
    if of_list and same_selection(study, settings, (*SELECTION, "search", "space", "num_samples")):
        known = study.configurations, study.workloads, settings.data, settings.data_seed, settings.skip_bad
        return chosen_before(*known, study.classes, settings.workload), settings.mode, None
    if settings.search is not None:
        return choose_searched(settings, study)
    return *choose(settings, settings.data_seed), None


def _command(settings: Settings) -> str:
    """What a terminal would be told for such a study; a call, where it holds what no command can say."""
    texts = specs_of(settings.workload)
    if texts is None or is_object(settings.search_name) or settings.space is not None:
        return CALL
    if not isinstance(settings.config, (str, NoneType)):
        return CALL
    return command(settings.changed(workload=texts))
