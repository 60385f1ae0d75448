"""Checks the results of a workload's methods and turns their faults into error messages for the author."""

from __future__ import annotations

import math
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from tuner.errors import TunerError, WorkloadError, one_line
from tuner.trial import Config, ConfigValue
from tuner.workloads.base import Batch, Split, Trainable, Workload
from tuner.workloads.batches import is_graph, remove_templates
from tuner.workloads.protocols import OptionalMethods, call, optional
from tuner.workloads.session import is_metric_name, to_number

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
NOT_THE_USERS = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
OURS = Path(__file__).parents[1]
FRAMES = 200  # the innermost ones of a traceback: of a million it would take a minute


@contextmanager
def calling(workload: Trainable, method: str) -> Iterator[None]:
    """Adds the workload's and the method's name to an exception of the block, for ``method_failure``.

    Built-in workloads are left out, since their exceptions are not the user's mistakes.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        module = getattr(workload.code, "__module__", None) or ""
        if not hasattr(error, "tuner_method") and not module.startswith(__package__):
            error.tuner_workload, error.tuner_method = workload.name, method  # type: ignore[union-attr]
        raise


def method_failure(error: BaseException) -> str:
    """The message for a workload's author, in one line; empty if no workload's method raised the exception."""
    if isinstance(error, WorkloadError):
        return str(error)
    return f"{error.tuner_method} failed: {summarize(error)}" if hasattr(error, "tuner_method") else ""


def to_workload_error(error: BaseException, when: str = "") -> WorkloadError | None:
    """The same as an error; None if it is a ``WorkloadError`` already or no workload's method raised it.

    ``when`` is added to the message, for example " while traced".
    """
    if isinstance(error, WorkloadError) or not hasattr(error, "tuner_method"):
        return None
    name, method = error.tuner_workload, error.tuner_method  # type: ignore[attr-defined]
    return WorkloadError(f"workload {name}: {method} failed{when}: {summarize(error)}")


def summarize(error: BaseException, function: Callable[..., object] | None = None) -> str:
    """An exception in one line: its type, its text, and the last line in the user's code or in ``function``."""
    text = one_line(error)
    where = "" if isinstance(error, SyntaxError) else _place(error, function)  # a SyntaxError's text has the line
    return f"{type(error).__name__}{': ' * bool(text)}{text}{where}"


def traceback_of(error: BaseException) -> str:
    """A traceback's text; of an exception of the user's code without the frames that lead there.

    Of a script or a command it is what that has printed.
    """
    if output := getattr(error, "tuner_output", ""):
        return str(output)
    told = traceback.TracebackException.from_exception(error, limit=-FRAMES)
    if hasattr(error, "tuner_method"):
        ours = [_is_ours(frame.filename) for frame in told.stack]
        told.stack = traceback.StackSummary.from_list(told.stack[ours.index(False) if False in ours else 0 :])
    return "".join(told.format())


def _place(error: BaseException, function: Callable[..., object] | None) -> str:
    stack = traceback.extract_tb(error.__traceback__, -FRAMES)
    frames = [(frame.filename, frame.lineno) for frame in stack if not _is_ours(frame.filename)]
    users = [(file, line) for file, line in frames if not NOT_THE_USERS & set(Path(file).parents)]
    code = getattr(function, "__code__", None)
    declared = [(code.co_filename, code.co_firstlineno)] if code else []
    places = users or declared or frames
    return f" ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else ""


def _is_ours(file: str) -> bool:
    """Whether a frame is of this file's package, or of Python's import system."""
    return file.startswith("<frozen") or OURS in Path(file).parents


def load_data(workload: Trainable, source: str, seed: int, **options: ConfigValue) -> object:
    """A workload's data; raises ``WorkloadError`` if the user's ``load_data`` fails."""
    try:
        with calling(workload, f"load_data({source!r}, {seed})"):
            return workload.load_data(source, seed, **options)
    except TunerError:
        raise
    except (Exception, SystemExit) as error:
        raise to_workload_error(error) or error from error


def built(workload: Workload, config: Config, data: object) -> nn.Module:
    """A new model; raises ``WorkloadError`` if it is not a module or has no parameters."""
    from torch import nn

    try:
        model = made(workload, "build_model", nn.Module, lambda: workload.build_model(config, data))
    finally:
        remove_templates()
    if next(model.parameters(), None) is None:
        _refuse(workload, "build_model returned a model without parameters: expected something to train")
    return model


def made(workload: Workload, method: str, kind: type[T], make: Callable[[], object]) -> T:
    """What a method returns; raises ``WorkloadError`` if it is not of this class of torch."""
    with calling(workload, method):
        value = make()
    if not isinstance(value, kind):
        _refuse(workload, f"{method} returned {_kind(value)}: expected torch's {kind.__name__}")
    return value


def chosen(workload: Workload, key: str, name: str, choices: Mapping[str, T], method: str) -> T:
    """The choice of this name; raises ``WorkloadError`` if a workload's own hyperparameter has another value."""
    if name not in choices:
        listed = ", ".join(choices)
        _refuse(workload, f"{key} {name!r}: choose one of {listed}, or give the workload a method {method}")
    return choices[name]


def epoch(workload: Workload, config: Config, data: object) -> Iterator[Batch]:
    """An epoch's batches; raises ``WorkloadError`` if there is none or the first is not a tuple of tensors.

    No reference to a batch is kept here, since its memory would be measured.
    """
    drawn = count()

    def checked(batch: Batch) -> Batch:
        return check_batch(workload, batch) if next(drawn) == 0 else batch

    with calling(workload, "batches"):
        batches = workload.batches(config, data)
        if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
            _refuse(workload, f"batches returned {_kind(batches)}: expected an iterable of tuples of tensors")
        yield from map(checked, batches)
    if next(drawn) == 0:
        refuse_none(workload)


def refuse_none(workload: Workload) -> NoReturn:
    """Raises ``WorkloadError`` because an epoch had no batch."""
    _refuse(workload, "batches returned no batch: expected at least one in an epoch: check the training data")


def check_batch(workload: Workload, batch: object, method: str = "batches yielded") -> Batch:
    """The batch; raises ``WorkloadError`` if it is neither a tuple of tensors nor a graph."""
    if is_graph(batch):
        return cast(Batch, batch)
    if not isinstance(batch, (tuple, list)) or not batch:
        _refuse(workload, f"{method} {_kind(batch)}: expected a tuple of tensors, such as (x, y), or a graph of PyG")
    for place, part in enumerate(batch):
        if not hasattr(part, "to"):
            text = f"{method} {_kind(part)} at index {place}: expected a tuple of tensors: torch.tensor() makes them"
            _refuse(workload, text)
    return cast(Batch, batch)


def check_loss(workload: Workload, loss: object) -> Tensor:
    """The loss; raises ``WorkloadError`` if it is not a scalar with a gradient."""
    from torch import Tensor

    if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
        what = _kind(loss) + " without a gradient" * (isinstance(loss, Tensor) and not loss.ndim)
        wanted = "expected a tensor with one number and a gradient"
        _refuse(workload, f"loss returned {what}: {wanted}: take its mean(), and leave out .item() and .detach()")
    return loss


def constant_loss(workload: Workload, data: object) -> float:
    """The training loss of the best constant prediction; infinite if the workload does not say it.

    Raises ``WorkloadError`` if the method returns no number.
    """
    with calling(workload, "constant_loss"):
        loss: object = call(workload, OptionalMethods.constant_loss, math.inf, data)
    return _number(workload, loss, "constant_loss returned {}: expected a number")


def evaluated(
    workload: Workload, model: nn.Module, data: object, split: Split, compared_by: str, parts: int
) -> dict[str, float]:
    """The metrics of a split as numbers, with the prefix ``val_`` or ``test_``.

    Raises ``WorkloadError`` if ``evaluate`` does not return numbers by name, or the validation metric that trials are
    ``compared_by`` is missing; by default that is the workload's own.
    """
    in_parts = optional(workload, OptionalMethods.evaluate_in_parts) if parts > 1 else None
    compared_by = compared_by or workload.metric
    metric = compared_by.removeprefix("val_")
    expected = f"expected numbers by name, such as {{{metric!r}: 0.5}}"
    with calling(workload, "evaluate_in_parts" if in_parts else "evaluate"):
        metrics: object = in_parts(model, data, split, parts) if in_parts else workload.evaluate(model, data, split)
    if not isinstance(metrics, Mapping):
        _refuse(workload, f"evaluate returned {_kind(metrics)}: {expected}")
    numbers = {}
    for name, value in metrics.items():
        if not is_metric_name(f"val_{name}"):
            _refuse(workload, f"evaluate returned {name!r:.60}: no metric can be called that: choose another name")
        numbers[name] = _number(workload, value, f"evaluate returned {{}} as {name!r}: expected numbers by name")
    if split == "validation" and metric not in numbers:
        names = ", ".join(map(str, numbers)) or "an empty dict"
        _refuse(workload, f"evaluate returned {names}, but not {metric!r}, which metric {compared_by!r} needs")
    prefix = {"validation": "val_", "test": "test_"}[split]
    return {prefix + name: value for name, value in numbers.items()}


def _number(workload: Workload, value: object, text: str) -> float:
    """The value as a number; else raises ``WorkloadError`` with ``text``, where ``{}`` becomes the value's type."""
    try:
        return to_number(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for more than one number
        _refuse(workload, text.replace("{}", _kind(value)))


def _kind(value: object) -> str:
    """A value's type with its article, and the shape of a tensor with more than one number."""
    if value is None or isinstance(value, type):
        return "None" if value is None else "a class"
    name = type(value).__name__.replace("FakeTensor", "Tensor")  # used while tracing
    empty = "empty " if isinstance(value, (tuple, list)) and not value else ""
    shape = getattr(value, "shape", ())
    of = f" of shape {tuple(shape)}" if isinstance(shape, tuple) and shape else ""
    return f"{'an' if (empty + name)[0].lower() in 'aeiou' else 'a'} {empty}{name}{of}"


def _refuse(workload: Workload, text: str) -> NoReturn:
    raise WorkloadError(f"workload {workload.name}: {text}")
