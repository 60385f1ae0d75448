"""Options for devices, the memory of trials, and its estimation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from tuner.errors import InputError, option
from tuner.estimation.estimators import Method, check_method, methods
from tuner.machine.devices import DeviceChoice
from tuner.spec.options import Options, Terminal, field
from tuner.trial import MOST_GB

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    Build = Callable[[dict[str, Any]], tuple[nn.Module, Optimizer | None, Callable[[], Tensor]]]
else:  # checked where it is used
    Build = object


def check_gb(given: object, what: str) -> float:
    """The given number of GB. Other values raise ``InputError``, whose text begins with ``what``."""
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 < given <= MOST_GB:
        raise InputError(f"{what}: must be a number of GB above 0 and at most {MOST_GB:,}")
    return float(given)


def _memory(given: object) -> object:
    """A number of GB, maybe numpy's, or a function that returns one."""
    if given is None or callable(given):
        return given
    plain = given.item() if hasattr(given, "item") else given
    return check_gb(plain, option("memory_gb", given))


Memory = Annotated[float | Callable[[dict[str, Any]], float] | None, BeforeValidator(_memory)]


EstimationMethod = Annotated[Method, AfterValidator(check_method)]


class DeviceSelection(Options, title="Execution"):
    """Where to train."""

    device: DeviceChoice = field("auto", "Where to train: cuda, cpu, or auto for GPUs where there are any.")


class DeviceOptions(DeviceSelection, title="Execution"):
    """Where to train, and with which allocator."""

    expandable_segments: bool = field(
        False, "Use the option of this name of PyTorch's CUDA allocator, which reduces fragmentation."
    )


class Estimation(DeviceOptions, title="Memory"):
    """How memory is estimated."""

    memory_estimation: EstimationMethod = field(
        "auto",
        "How to estimate memory: static is GraphSAGE's formula, traced follows a training step on tensors "
        "without data, measured runs one, and auto traces where a step can be followed. The memory of a "
        "function or a script is learned: the first trials run with room to spare, and their peaks tell what "
        "the others need.",
        Terminal(choices=methods()),
    )
    calibration: bool = field(
        True, "Correct estimates by what earlier trials on this device took, and learn from new ones."
    )


class TrialMemory(Estimation, title="Memory"):
    """The memory that each trial gets."""

    auto_memory: bool = field(
        True, f"Estimate the memory of each configuration. {option('model_memory_gb')} gives a fixed size instead."
    )
    model_memory_gb: float | None = field(
        None,
        "Give each trial this memory, in GB of 2**30 bytes.",
        Terminal("GB", unset="the memory is estimated"),
        gt=0,
        le=MOST_GB,
    )
    memory_gb: Memory = field(
        None,
        "Give each trial this memory, in GB, including its process.",
        Terminal(
            "GB",
            unset="the memory is estimated; that of a function or a script is learned from its first trials",
            in_python="A function of the configuration that returns it can be given, too.",
        ),
    )
    estimate: Build | None = field(
        None,
        "For a function of your own, whose step cannot be followed: a function of the configuration that "
        "builds and returns the model, its optimizer (or None) and a function that computes a batch's loss. "
        "It runs on tensors without data, so that memory is estimated instead of learned.",
        Terminal(hidden=True),
    )


class DeviceMemory(Options, title="Memory"):
    """The memory of each device that trials may use."""

    gpu_memory_buffer_gb: float = field(
        2.0,
        "The memory to leave free on each device, a GPU or the machine's RAM, in GB.",
        Terminal("GB"),
        ge=0,
        le=MOST_GB,
    )
    device_memory_gb: float | None = field(
        None,
        "Use each device as if it had no more than this memory, in GB.",
        Terminal("GB", unset="all of its memory"),
        gt=0,
        le=MOST_GB,
    )
