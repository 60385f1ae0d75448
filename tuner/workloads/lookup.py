"""Finds workloads: built-in ones by name, the user's own by ``module:Class``; none is imported before it is named."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tuner.errors import InputError
from tuner.workloads import custom
from tuner.workloads.base import Workload
from tuner.workloads.built_in import BUILT_IN, is_built_in

WorkloadLike = str | Workload | type[Workload]  # a name, module:Class, an object or its class
WorkloadsLike = WorkloadLike | Sequence[WorkloadLike]

Classes = Mapping[str, str | None]
NO_CLASSES: Classes = MappingProxyType({})
WAS_OBJECT = "was given as an object, of a class that is in no module or with attributes of its own"


def find_workload(wanted: WorkloadLike, classes: Classes = NO_CLASSES) -> Workload:
    """The workload for a built-in one's name, ``package.module:Class``, an object or its class.

    Modules are also found in the current folder. ``classes`` tells where a study's workloads are found:
    ``module:Class`` by name, None if it is not known.

    Raises ``InputError`` if there is none, or it cannot be used; the text says why.
    """
    if isinstance(wanted, str) and wanted in BUILT_IN:
        return _built_in(wanted)
    if isinstance(wanted, Workload):
        found = wanted
        custom.check(found)
    elif isinstance(wanted, type) and issubclass(wanted, Workload):
        found = custom.make(wanted)
    elif isinstance(wanted, str) and (wanted in classes or ":" in wanted):
        found = _by_class(wanted, classes)
    else:
        known = ", ".join(BUILT_IN)
        hint = custom.in_file(wanted) if isinstance(wanted, str) else ""
        hint = hint or f"choose one of {known}, or give your own as MODULE:CLASS"
        raise InputError(f"unknown workload {wanted!r}: {hint}")
    if found.name in BUILT_IN and BUILT_IN[found.name] != custom.spec_of(found):
        raise InputError(f"workload {found.name}: a built-in one is called so: give your class another name")
    return found


def as_list(wanted: WorkloadsLike) -> list[WorkloadLike]:
    """One workload or several, as a list."""
    return list(wanted) if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]


def specs_of(wanted: WorkloadsLike) -> Sequence[str] | str | None:
    """The workloads as texts, which a file can hold; None if one of them cannot be found by a text."""
    if all(isinstance(each, str) for each in as_list(wanted)):
        return wanted  # type: ignore[return-value]
    texts = [
        each if isinstance(each, str) else find_workload(each) and custom.spec_of(each) for each in as_list(wanted)
    ]
    return None if None in texts else [str(each) for each in texts]


def texts_of(wanted: WorkloadsLike) -> Sequence[str] | str:
    """The workloads as texts; one that cannot be found by a text is named."""
    texts = specs_of(wanted)
    if texts is not None:
        return texts
    return [(specs_of([each]) or [find_workload(each).name])[0] for each in as_list(wanted)]


def classes_of(workloads: Sequence[Workload]) -> dict[str, str | None]:
    """``module:Class`` of the user's own workloads, by name; None for one that is in no module."""
    return {each.name: custom.spec_of(each) for each in workloads if not is_built_in(each)}


class Finder:
    """Finds each workload once, then also by its name."""

    def __init__(self, classes: Classes = NO_CLASSES) -> None:
        """Knows none yet; ``classes`` as for ``find_workload``."""
        self._classes = classes
        self._known: dict[str, Workload] = {}

    def __call__(self, wanted: WorkloadLike) -> Workload:
        """As ``find_workload``; raises ``InputError`` also if two workloads differ and have one name."""
        if isinstance(wanted, str) and wanted in self._known:
            return self._known[wanted]
        found = find_workload(wanted, self._classes)
        known = self._known.setdefault(found.name, found)
        if known is not found and (type(known) is not type(found) or vars(known) or vars(found)):
            raise InputError(f"two workloads are called {found.name!r}: give one of them another name")
        if isinstance(wanted, str):
            self._known[wanted] = known
        return known


def _built_in(name: str) -> Workload:
    module, _, attribute = BUILT_IN[name].partition(":")
    workload: Workload = getattr(importlib.import_module(module), attribute)()
    return workload


def _by_class(wanted: str, classes: Classes) -> Workload:
    spec = classes.get(wanted, wanted)
    if not isinstance(spec, str):
        raise InputError(f"workload {wanted} {WAS_OBJECT}: give it again, from Python")
    found = custom.make(custom.load_class(spec))
    if wanted in classes and found.name != wanted:
        raise InputError(f"workload {wanted}: {spec} is now called {found.name!r}: give it its old name")
    return found
