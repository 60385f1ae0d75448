"""Finds workloads: built-in ones by name, the user's by ``module:Class``. Only the named ones are imported."""

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import cast

from tuner.errors import InputError, WorkloadError, did_you_mean
from tuner.hyperparameters import LOOP_DEFAULTS, Hyperparameter, TextHyperparameter, declared
from tuner.objective import DIRECTIONS
from tuner.workloads.base import BUILT_IN, MOST_BYTES_OF_NAME, NAME, Trainable, Workload, is_built_in
from tuner.workloads.command_line import SCRIPT
from tuner.workloads.contract import summarize
from tuner.workloads.program import Function, Program
from tuner.workloads.script import script_in

# A name, module:Class or module:function, an object, its class, or a function.
WorkloadLike = str | Trainable | type[Workload] | Callable[..., object]
WorkloadsLike = WorkloadLike | Sequence[WorkloadLike]

Classes = Mapping[str, str | None]
NO_CLASSES: Classes = MappingProxyType({})
WAS_OBJECT = "was passed as an object whose class is not in a module or that has attributes of its own"
SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")  # package.module:Class
RESERVED = ("name", "workload")  # keys of an entry of a list of configurations that are not hyperparameters


def find_workload(wanted: WorkloadLike, classes: Classes = NO_CLASSES) -> Trainable:
    """The workload for a name, ``package.module:name``, a script's command, an object, its class, or a function.

    Modules are also found in the current folder. ``classes`` maps the names of a study's workloads to their
    ``module:Class``, or to None if it is unknown. Raises ``InputError`` if the workload is missing or invalid.
    """
    if isinstance(wanted, str) and wanted in BUILT_IN:
        module, _, attribute = BUILT_IN[wanted].partition(":")
        return cast(Trainable, getattr(importlib.import_module(module), attribute)())
    if isinstance(wanted, Trainable):
        workload = wanted
        check(workload)
    elif isinstance(wanted, type) and issubclass(wanted, Workload):
        workload = _made(wanted)
    elif isinstance(wanted, str) and (wanted in classes or ":" in wanted or wanted.startswith(SCRIPT)):
        workload = _by_spec(wanted, classes)
    elif callable(wanted) and not isinstance(wanted, type):
        workload = Function(wanted)
    else:
        names = ", ".join(BUILT_IN)
        hint = in_file(wanted) if isinstance(wanted, str) else ""
        hint = hint or f"choose one of {names}, or give your own as MODULE:CLASS or MODULE:FUNCTION"
        raise InputError(f"unknown workload {wanted!r}: {hint}")
    if workload.name in BUILT_IN and BUILT_IN[workload.name] != workload.spec:
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
    return {workload.name: workload.spec for workload in workloads if not is_built_in(workload)}


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
        first = self._known.setdefault(workload.name, workload)
        if first is not workload and (type(first) is not type(workload) or vars(first) or vars(workload)):
            raise InputError(f"two workloads are called {workload.name!r}: give one of them another name")
        if isinstance(wanted, str):
            self._known[wanted] = first
        return first


def _by_spec(wanted: str, classes: Classes) -> Trainable:
    spec = classes.get(wanted, wanted)
    if not isinstance(spec, str):
        raise InputError(f"workload {wanted} {WAS_OBJECT}: pass it again from Python")
    workload: Trainable
    if spec.startswith(SCRIPT):
        workload = script_in(spec)
    else:
        code = _load(spec)
        workload = _made(code) if isinstance(code, type) else Function(code)
    if wanted in classes and workload.name != wanted:
        raise InputError(f"workload {wanted}: {spec} is now called {workload.name!r}: give it its old name")
    return workload


def _load(spec: str) -> type[Workload] | Callable[..., object]:
    """The class or function that ``package.module:name`` names. Modules are searched in the current folder, too.

    Raises ``InputError`` if the name does not exist, the import fails, or the class is not a workload.
    """
    what = f"workload {spec!r}"
    if not SPEC.fullmatch(spec):
        raise InputError(f"{what}: expected MODULE:CLASS or MODULE:FUNCTION, such as my_model:train")
    module_name, _, class_name = spec.partition(":")
    cls: object = _module(module_name, what)
    for part in class_name.split("."):
        if not hasattr(cls, part):
            raise InputError(f"{what}: {module_name} has no {class_name!r}{_classes(cls, part)}")
        cls = getattr(cls, part)
    if callable(cls) and not isinstance(cls, type):
        return cls
    if not (isinstance(cls, type) and issubclass(cls, Workload)):
        kind = "class, but not one derived from tuner.Workload" if isinstance(cls, type) else type(cls).__name__
        raise InputError(f"{what}: it is a {kind}: give a function, or a class derived from tuner.Workload")
    return cls


def _made(cls: type[Workload]) -> Workload:
    """A workload of this class; raises ``InputError`` if it lacks a method, cannot be made or has a bad attribute."""
    what = _what(cls)
    if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
        methods = f"the method {lacking[0]}" if len(lacking) == 1 else f"the methods {', '.join(lacking)}"
        raise InputError(f"{what}: it lacks {methods}")
    try:
        workload = cls()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{what}: it cannot be made without arguments ({summarize(error, cls.__init__)}): give its constructor "
            "defaults, or pass an object to tuner.run()"
        ) from error
    check(workload)
    return workload


def check(workload: Trainable) -> None:
    """Raises ``InputError`` if an attribute of a workload is missing or invalid."""
    for fault in _faults(workload):
        raise InputError(f"{_what(type(workload))}: {fault}")


def _faults(workload: Trainable) -> Iterator[str]:
    if not isinstance(workload.name, str) or not NAME.fullmatch(workload.name):
        yield f"name {workload.name!r:.60}: expected letters, digits, '-', '_' and '.'"
    elif len(workload.name.encode()) > MOST_BYTES_OF_NAME:
        yield f"name {workload.name:.30}… is too long: give one of at most {MOST_BYTES_OF_NAME} letters"
    if isinstance(workload, Program):
        return
    metric = getattr(workload, "metric", None)
    if not isinstance(metric, str) or not metric.startswith("val_"):
        yield f"metric is {metric!r}: expected 'val_' and a metric's name from evaluate, such as 'val_loss'"
    if workload.direction is not None and workload.direction not in DIRECTIONS:
        yield f"direction is {workload.direction!r}: expected 'minimize' or 'maximize'"
    headline: object = workload.headline
    if not isinstance(headline, (tuple, list)) or not all(isinstance(name, str) for name in headline):
        yield f"headline is {headline!r}: expected names of metrics from evaluate, such as ('accuracy',)"
    declarations = getattr(workload, "hyperparameters", None)
    if not isinstance(declarations, Mapping):
        expected = "a dictionary of tuner.Hyperparameter or defaults by name"
        yield f"hyperparameters is {declarations!r}: expected {expected}"
        return
    for key, value in declarations.items():
        if fault := _hyperparameter_fault(key, value):
            yield f"hyperparameters: {fault}"
    keys: object = workload.data_keys
    if not isinstance(keys, (tuple, list)) or not all(isinstance(key, str) and key in declarations for key in keys):
        yield f"data_keys is {keys!r}: expected names of its hyperparameters, such as ('window',)"
    batch = workload.memory_scales_with
    if batch is not None and not isinstance(declared(batch, declarations.get(batch, "")), Hyperparameter):
        yield f"memory_scales_with is {batch!r}, which is not one of its numeric hyperparameters"


def _hyperparameter_fault(key: object, value: object) -> str:
    if not isinstance(value, (Hyperparameter, TextHyperparameter, int, float, str)):
        return f"{key!r} is {value!r}: expected a number, a text or a tuner.Hyperparameter"
    if not isinstance(key, str) or key in RESERVED:
        return f"{key!r} cannot be a hyperparameter's name: choose another name"
    value = declared(key, value)
    if key in LOOP_DEFAULTS and isinstance(value.default, str):
        return f"the default of {key} is {value.default!r}: the training loop reads a number"
    if key == "epochs" and isinstance(value.default, float):
        return f"the default of epochs is {value.default!r}: give a whole number"
    if isinstance(value, TextHyperparameter):
        return ""
    if value.low > value.high:
        return f"{key} is from {value.low:g} to {value.high:g}: give the smallest first"
    if not value.low <= value.default <= value.high:
        return f"the default of {key} is {value.default!r}, not from {value.low:g} to {value.high:g}"
    return ""


def _module(name: str, what: str) -> ModuleType:
    """Imports the module of this name. The current folder is searched first, as with ``python -m``."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            folder = f"go to the folder that has {name.split('.')[0]}, or install it"
            hint = did_you_mean(name, [file.stem for file in Path().glob("*.py")], folder, cutoff=0.75)
            raise InputError(f"{what}: there is no module {error.name!r} in {here} or installed: {hint}") from error
        raise WorkloadError(f"{what}: importing {name} failed: {summarize(error)}") from error
    except SystemExit as error:  # from a script
        text = f"importing {name} ends the program ({summarize(error)})"
        raise InputError(f"{what}: {text}: put its script code under if __name__ == '__main__':") from error


def in_file(name: str) -> str:
    """A hint at the workloads in a module of this name in the current folder. The module is not imported."""
    file = Path(name if name.endswith(".py") else f"{name}.py")
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return ""
    bases = {node.name: {ast.unparse(base) for base in node.bases} for node in body if isinstance(node, ast.ClassDef)}
    workloads: list[str] = []
    for cls, derived in bases.items():
        if derived & {"Workload", "tuner.Workload", *workloads}:
            workloads.append(cls)
    return f"did you mean {' or '.join(f'{file.stem}:{cls}' for cls in workloads)}?" if workloads else ""


def _classes(module: object, wanted: str) -> str:
    """A hint at the workloads of a module."""
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type) and name != "Workload"}
    names = [name for name, cls in classes.items() if issubclass(cls, Workload)]
    return ": " + did_you_mean(wanted, names, f"it has {', '.join(names)}") if names else ""


def _what(cls: type[Trainable]) -> str:
    return f"workload {cls.__module__}:{cls.__qualname__}"
