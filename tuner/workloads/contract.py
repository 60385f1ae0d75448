"""What a workload's methods are held to where they are called, and how what its author got wrong is told."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tuner.errors import WorkloadError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tuner.workloads.base import Batch, Config, Workload

NOT_THE_USERS = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
OURS = Path(__file__).parents[1]


@contextmanager
def asked(workload: Workload, method: str) -> Iterator[None]:
    """In this block a method of a workload runs: what is raised there carries its name, for ``told``.

    Built-in workloads are left out: what they raise is no mistake of the user's.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if not hasattr(error, "tuner_method") and not type(workload).__module__.startswith(__package__):
            error.tuner_workload, error.tuner_method = workload.name, method  # type: ignore[union-attr]
        raise


def told(error: BaseException) -> str:
    """What a workload's author is to know of an exception, in one line; empty if it is not from a method of his."""
    if isinstance(error, WorkloadError):
        return str(error)
    return f"{error.tuner_method} failed: {said(error)}" if hasattr(error, "tuner_method") else ""


def fault(error: BaseException, when: str = "") -> WorkloadError | None:
    """The same of an exception that is no ``WorkloadError`` yet, as one; None if it is not from a method of his.

    Args:
        error: what was raised.
        when: what else is to be said of it, such as " while traced".
    """
    if isinstance(error, WorkloadError) or not hasattr(error, "tuner_method"):
        return None
    name, method = error.tuner_workload, error.tuner_method  # type: ignore[attr-defined]
    return WorkloadError(f"workload {name}: {method} failed{when}: {said(error)}; --debug shows where")


def said(error: BaseException, code: Any = None) -> str:
    """An exception in one line: its type, its text, and the last line of the user's own code that it came from.

    Args:
        error: what was raised.
        code: the function to name where none of the user's had begun; None for none.
    """
    text = " ".join(str(error).split())
    where = "" if isinstance(error, SyntaxError) else _place(error, code)  # its text has file and line
    return f"{type(error).__name__}{': ' * bool(text)}{text}{where}"


def _place(error: BaseException, function: Any) -> str:
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames = [each for each in frames if not each[0].startswith("<frozen") and OURS not in Path(each[0]).parents]
    own = [each for each in frames if not NOT_THE_USERS & set(Path(each[0]).parents)]
    code = getattr(function, "__code__", None)
    declared = [(code.co_filename, code.co_firstlineno)] if code else []
    found = own or declared or frames
    return f" ({Path(found[-1][0]).name}, line {found[-1][1]})" if found else ""


def epoch(workload: Workload, config: Config, data: Any) -> Iterator[Batch]:
    """An epoch's batches as the workload draws them: there is at least one, and the first is looked over.

    None is held here, as that would be measured too.

    Raises:
        WorkloadError: there is none, or they are no tuples of tensors.
    """
    drawn = count()

    def looked_over(batch: Batch) -> Batch:
        return check_batch(workload, batch) if next(drawn) == 0 else batch

    with asked(workload, "batches"):
        found: Any = workload.batches(config, data)
        try:
            batches = iter(found)
        except TypeError:
            _refuse(
                workload, f"batches returned {_kind(found)}: expected tuples of tensors: yield each, or list them"
            )
        yield from map(looked_over, batches)
    if next(drawn) == 0:
        refuse_none(workload)


def refuse_none(workload: Workload) -> NoReturn:
    """An epoch had no batch.

    Raises:
        WorkloadError: always.
    """
    _refuse(workload, "batches gave none: expected at least one in an epoch: look at the training data")


def check_batch(workload: Workload, batch: Any, method: str = "batches yielded") -> Any:
    """The batch, which is a tuple of tensors.

    Raises:
        WorkloadError: it is none.
    """
    if not isinstance(batch, (tuple, list)) or not batch:
        _refuse(workload, f"{method} {_kind(batch)}: expected a tuple of tensors, such as (x, y)")
    for place, part in enumerate(batch):
        if not hasattr(part, "to"):
            _refuse(
                workload,
                f"{method} {_kind(part)} at index {place}: expected a tuple of tensors: torch.tensor() makes them",
            )
    return batch


def built(workload: Workload, config: Config, data: Any) -> nn.Module:
    """A new model of the workload's.

    Raises:
        WorkloadError: it is none, or has nothing that could be trained.
    """
    from torch import nn

    with asked(workload, "build_model"):
        model: Any = workload.build_model(config, data)
    if not isinstance(model, nn.Module):
        _refuse(workload, f"build_model returned {_kind(model)}: expected a torch.nn.Module")
    if next(model.parameters(), None) is None:
        _refuse(workload, "build_model returned a model without parameters: expected something to train")
    return model


def check_loss(workload: Workload, loss: Any) -> Tensor:
    """The loss, which is a scalar that gradients can be taken of.

    Raises:
        WorkloadError: it is none; the text says why.
    """
    from torch import Tensor

    wanted = "expected a tensor with one number and a gradient"
    if not isinstance(loss, Tensor):
        cut = ": leave out .item() and float()" if isinstance(loss, (float, int)) else ""
        _refuse(workload, f"loss returned {_kind(loss)}: {wanted}{cut}")
    if loss.ndim:
        _refuse(workload, f"loss returned a tensor of shape {tuple(loss.shape)}: {wanted}: take its mean()")
    if not loss.requires_grad:
        _refuse(workload, f"loss returned a tensor without a gradient: {wanted}: leave out .detach() and no_grad()")
    return loss


def figures(workload: Workload, found: Any, split: str) -> dict[str, float]:
    """What ``evaluate`` returned for a split, as numbers.

    Raises:
        WorkloadError: it is no dict of numbers, or on the validation split lacks the metric.
    """
    from torch import Tensor

    wanted = workload.metric.removeprefix("val_")
    such = f"expected numbers by name, such as {{{wanted!r}: 0.5}}"
    if not isinstance(found, Mapping):
        _refuse(workload, f"evaluate returned {_kind(found)}: {such}")
    numbers = {}
    for name, value in found.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            _refuse(workload, f"evaluate returned a tensor of shape {tuple(value.shape)} as {name!r}: {such}")
        if isinstance(value, (str, bytes)):  # float() would read it
            _refuse(workload, f"evaluate returned {_kind(value)} as {name!r}: {such}")
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            _refuse(workload, f"evaluate returned {_kind(value)} as {name!r}: {such}")
    if split == "validation" and wanted not in numbers:
        _refuse(
            workload,
            f"evaluate returned {', '.join(map(str, numbers)) or 'an empty dict'}, not {wanted!r}, which metric "
            f"{workload.metric!r} compares by",
        )
    return numbers


def _kind(value: Any) -> str:
    """What a value is, in a word or two."""
    if value is None or isinstance(value, type):
        return "None" if value is None else "a class"
    name = type(value).__name__
    empty = "empty " if isinstance(value, (tuple, list)) and not value else ""
    return f"{'an' if (empty + name)[0].lower() in 'aeiou' else 'a'} {empty}{name}"


def _refuse(workload: Workload, text: str) -> NoReturn:
    raise WorkloadError(f"workload {workload.name}: {text}")
