"""The user's own workloads: imports them by ``module:Class`` and checks them."""

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from tuner.errors import InputError, WorkloadError, did_you_mean
from tuner.hyperparameters import LOOP_DEFAULTS, Hyperparameter, TextHyperparameter, declared
from tuner.objective import DIRECTIONS
from tuner.workloads.base import MOST_BYTES_OF_NAME, NAME, Trainable, Workload
from tuner.workloads.contract import summarize
from tuner.workloads.pickling import place_of
from tuner.workloads.program import Program

SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")  # package.module:Class
RESERVED = ("name", "workload")  # keys of an entry of a list of configurations that are not hyperparameters


def load(spec: str) -> type[Workload] | Callable[..., object]:
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


def make(cls: type[Workload]) -> Workload:
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
    known = getattr(workload, "hyperparameters", None)
    if not isinstance(known, Mapping):
        yield f"hyperparameters is {known!r}: expected a dictionary of tuner.Hyperparameter or defaults by name"
        return
    for key, value in known.items():
        if fault := _hyperparameter_fault(key, value):
            yield f"hyperparameters: {fault}"
    keys: object = workload.data_keys
    if not isinstance(keys, (tuple, list)) or not all(isinstance(key, str) and key in known for key in keys):
        yield f"data_keys is {keys!r}: expected names of its hyperparameters, such as ('window',)"
    batch = workload.memory_scales_with
    if batch is not None and not isinstance(declared(batch, known.get(batch, "")), Hyperparameter):
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


def spec_of(workload: Trainable | type[Trainable]) -> str | None:
    """The text by which another process finds a workload, such as ``module:Class``; None if there is none."""
    return place_of(workload) if isinstance(workload, type) else workload.spec


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
    own: list[str] = []
    for cls, derived in bases.items():
        if derived & {"Workload", "tuner.Workload", *own}:
            own.append(cls)
    return f"did you mean {' or '.join(f'{file.stem}:{cls}' for cls in own)}?" if own else ""


def _classes(module: object, wanted: str) -> str:
    """A hint at the workloads of a module."""
    known = [name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, Workload)]
    own = [name for name in known if name != "Workload"]
    return ": " + did_you_mean(wanted, own, f"it has {', '.join(own)}") if own else ""


def _what(cls: type[Trainable]) -> str:
    return f"workload {cls.__module__}:{cls.__qualname__}"
