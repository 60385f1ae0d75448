"""``StudySpec``: what a study is, as its options say it. ``tuner.spec.specify`` makes one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tuner.records.study_record import Scale
from tuner.search.domains import Space
from tuner.search.optuna_names import PBT
from tuner.search.searchers import Searcher
from tuner.spec.settings import Settings
from tuner.trial import ConfigValue
from tuner.workloads.base import Trainable
from tuner.workloads.task import Selection

FIRST = 8  # suggestions are enough for a plan


@dataclass(frozen=True)
class SearchedSpace:
    """What is searched for a workload."""

    workload: Trainable
    space: Space  # with every value that the user gave; ``tuner.search.domains.objects_of`` has what labels stand for
    fixed: Mapping[str, object]  # values of configurations that lack them
    source: str  # what messages call the space
    points: Sequence[Mapping[str, ConfigValue]] = ()  # what is tried first
    named: Collection[str] = ()  # keys of which a grid's names are made


@dataclass(frozen=True)
class Search:
    """Suggests a study's trials."""

    workload: Trainable  # what they train
    searcher: Searcher  # what suggests values
    fixed: Mapping[str, object]  # values of all of them
    first: int = FIRST  # the most suggestions that are made before anything runs
    most: int | None = None  # how many it may suggest; None for ``num_samples``
    endless: bool = False  # their number is unknown: something else ends it
    name_of: Callable[[str], str] = lambda trial_id: f"suggestion-{int(trial_id[1:])}"  # of a trial's configuration


@dataclass(frozen=True)
class StudySpec:
    """What is to be tried, and who asked for it. Its options have been checked."""

    selections: Sequence[Selection]  # what to try of each workload, in the order in which trials are numbered
    settings: Settings
    label: str = ""  # ends the default folder's name: the mode
    command: str = ""  # what the user called
    # The options of ``tuner run`` that make this study, with which it is resumed; None if the call alone does.
    options: Mapping[str, object] | None = None
    # Suggests trials as others end; those in ``selections`` are what it suggested before.
    search: Search | None = None
    spaces: Sequence[SearchedSpace] = ()  # what is searched, for each workload
    id: str = ""  # what a user's own Optuna study knows this one by
    shows_end: bool = False  # tables, advice and how to repeat the best trial are printed
    returns_table: bool = False  # the caller returns a table that a notebook shows, so that none is printed there
    from_python: bool = False  # the user called a function, so that texts name its parameters

    def __post_init__(self) -> None:
        """Raises ``InputError`` for options that exclude each other, and for folders that cannot be used."""
        self.settings.check()

    @property
    def is_endless(self) -> bool:
        """Whether the number of trials is unknown."""
        return self.search is not None and self.search.endless

    @property
    def scales(self) -> dict[str, Scale]:
        """The scale of each range in the space, by hyperparameter."""
        return {key: domain.scale for one in self.spaces for key, domain in one.space.items() if domain.scale}

    @property
    def whole_lists(self) -> list[str]:
        """A line for each list that is one value of a space, as others take it for choices."""
        constants = (
            (key, domain.values[0]) for one in self.spaces for key, domain in one.space.items() if domain.is_constant
        )
        return [
            f"{key} is the list {value!r:.60} in every trial: {{choice: [...]}} would try its values one by one"
            for key, value in constants
            if isinstance(value, list) and len(value) > 1
        ]

    @property
    def population(self) -> Space | None:
        """The space of a population that is trained by ``pbt``; None for other studies."""
        return self.spaces[0].space if self.settings.scheduler == PBT else None
