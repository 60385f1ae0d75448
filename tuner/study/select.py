"""The first stage: from options to what is to be tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import NoneType

from tuner.errors import ParameterError, option
from tuner.records.study_record import UNKNOWN, StudyRecord, read_study
from tuner.spec.groups import UP_FRONT
from tuner.spec.settings import Settings
from tuner.study.live_search import LiveSearch
from tuner.study.repeat import command
from tuner.study.searching import SELECTION, choose_searched, same_selection, with_search
from tuner.study.selection import choose, chosen_before
from tuner.study.stages import Selected
from tuner.study.stored_options import CALL, is_object, plainly, resumed, to_stored
from tuner.workloads.lookup import specs_of
from tuner.workloads.task import Selection


def select(settings: Settings, *, from_python: bool = False) -> Selected:
    """What these options ask for; of a study that is resumed its own, except those that are given now.

    Raises:
        InputError: one of them cannot be used; data are not looked at.
    """
    settings, record, folder = plainly(settings), UNKNOWN, settings.resume
    if folder:
        record = read_study(Path(folder), option("resume", folder))
        settings = resumed(record, settings, from_python=from_python)
    settings = with_search(settings)
    selections, label, live = _selections(settings, record)
    called, stored = _command(settings), to_stored(settings)
    return Selected(selections, settings, label, called, stored, live, shows_end=True, from_python=from_python)


def _selections(settings: Settings, record: StudyRecord) -> tuple[Sequence[Selection], str, LiveSearch | None]:
    """What to try of each workload, what the list is called, and the search that adds to it.

    What a study tried, if nothing else is asked for.
    """
    if settings.search is None:
        for name in ("points", "num_samples"):
            if getattr(settings, name) is not None:
                raise ParameterError(name, getattr(settings, name), f"has no effect without {option('space')}")
    of_list = settings.search in (None, *UP_FRONT)
    if of_list and same_selection(record, settings, (*SELECTION, "search", "space", "points", "num_samples")):
        known = record.configurations, record.workloads, settings.data, settings.data_seed, settings.skip_bad
        return chosen_before(*known, record.classes, settings.workload), settings.mode, None
    if settings.search is not None:
        return choose_searched(settings, record)
    return *choose(settings, settings.data_seed), None


def _command(settings: Settings) -> str:
    """What a terminal would be told for such a study; a call, where it holds what no command can say."""
    texts = specs_of(settings.workload)
    functions = callable(settings.memory_gb) or settings.estimate is not None or settings.points is not None
    if texts is None or is_object(settings.search_name) or functions:
        return CALL
    if not all(isinstance(each, (str, NoneType)) for each in (settings.config, settings.space)):
        return CALL
    return command(settings.changed(workload=texts))
