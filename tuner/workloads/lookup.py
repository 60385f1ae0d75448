"""Finds workloads: built-in ones by name, the user's by ``module:Class``. Only the named ones are imported."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tuner.errors import InputError
from tuner.workloads import custom
from tuner.workloads.base import BUILT_IN, Trainable, Workload, is_built_in
from tuner.workloads.command import script_in
from tuner.workloads.command_line import SCRIPT
from tuner.workloads.function import Function

# A name, module:Class or module:function, an object, its class, or a function.
WorkloadLike = str | Trainable | type[Workload] | Callable[..., object]
WorkloadsLike = WorkloadLike | Sequence[WorkloadLike]

Classes = Mapping[str, str | None]
NO_CLASSES: Classes = MappingProxyType({})
WAS_OBJECT = "was passed as an object whose class is not in a module or that has attributes of its own"


def find_workload(wanted: WorkloadLike, classes: Classes = NO_CLASSES) -> Trainable:
    """The workload for a name, ``package.module:name``, a script's command, an object, its class, or a function.

    Modules are also found in the current folder. ``classes`` maps the names of a study's workloads to their
    ``module:Class``, or to None if it is unknown. Raises ``InputError`` if the workload is missing or invalid.
    """
    if isinstance(wanted, str) and wanted in BUILT_IN:
        return _built_in(wanted)
    if isinstance(wanted, Trainable):
        workload = wanted
        custom.check(workload)
    elif isinstance(wanted, type) and issubclass(wanted, Workload):
        workload = custom.make(wanted)
    elif isinstance(wanted, str) and (wanted in classes or ":" in wanted or wanted.startswith(SCRIPT)):
        workload = _by_spec(wanted, classes)
    elif callable(wanted) and not isinstance(wanted, type):
        workload = Function(wanted)
    else:
        known = ", ".join(BUILT_IN)
        hint = custom.in_file(wanted) if isinstance(wanted, str) else ""
        hint = hint or f"choose one of {known}, or give your own as MODULE:CLASS or MODULE:FUNCTION"
        raise InputError(f"unknown workload {wanted!r}: {hint}")
    if workload.name in BUILT_IN and BUILT_IN[workload.name] != custom.spec_of(workload):
        raise InputError(f"workload {workload.name}: a built-in workload has this name: give your class another name")
    return workload


def as_list(wanted: WorkloadsLike) -> list[WorkloadLike]:
    """One workload or several, as a list."""
    return list(wanted) if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]


def specs_of(wanted: WorkloadsLike) -> Sequence[str] | str | None:
    """The workloads as texts for a file; None if one of them has no ``module:Class``."""
    if all(isinstance(workload, str) for workload in as_list(wanted)):
        return wanted  # type: ignore[return-value]
    texts = [workload if isinstance(workload, str) else find_workload(workload).spec for workload in as_list(wanted)]
    return None if None in texts else [str(text) for text in texts]


def texts_of(wanted: WorkloadsLike) -> Sequence[str] | str:
    """The workloads as texts: names or ``module:Class``, and the name of one that has no ``module:Class``."""
    texts = specs_of(wanted)
    if texts is not None:
        return texts
    return [(specs_of([workload]) or [find_workload(workload).name])[0] for workload in as_list(wanted)]


def classes_of(workloads: Sequence[Trainable]) -> dict[str, str | None]:
    """``module:Class`` of the user's own workloads by name; None for one that has none."""
    return {workload.name: custom.spec_of(workload) for workload in workloads if not is_built_in(workload)}


class Finder:
    """Finds each workload once and remembers it by its name."""

    def __init__(self, classes: Classes = NO_CLASSES) -> None:
        self._classes = classes
        self._known: dict[str, Trainable] = {}
        self._functions: dict[int, Trainable] = {}  # by the id of the user's function

    def __call__(self, wanted: WorkloadLike) -> Trainable:
        """As ``find_workload``; raises ``InputError`` also if two different workloads have the same name."""
        if isinstance(wanted, str) and wanted in self._known:
            return self._known[wanted]
        workload = self._functions.get(id(wanted)) or find_workload(wanted, self._classes)
        if isinstance(workload, Function):
            self._functions[id(wanted)] = workload
        known = self._known.setdefault(workload.name, workload)
        if known is not workload and (type(known) is not type(workload) or vars(known) or vars(workload)):
            raise InputError(f"two workloads are called {workload.name!r}: give one of them another name")
        if isinstance(wanted, str):
            self._known[wanted] = known
        return known


def _built_in(name: str) -> Trainable:
    module, _, attribute = BUILT_IN[name].partition(":")
    workload: Trainable = getattr(importlib.import_module(module), attribute)()
    return workload


def _by_spec(wanted: str, classes: Classes) -> Trainable:
    spec = classes.get(wanted, wanted)
    if not isinstance(spec, str):
        raise InputError(f"workload {wanted} {WAS_OBJECT}: pass it again from Python")
    workload: Trainable
    if spec.startswith(SCRIPT):
        workload = script_in(spec)
    else:
        found = custom.load(spec)
        workload = custom.make(found) if isinstance(found, type) else Function(found)
    if wanted in classes and workload.name != wanted:
        raise InputError(f"workload {wanted}: {spec} is now called {workload.name!r}: give it its old name")
    return workload
