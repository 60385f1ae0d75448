"""``memory_aware``: gives a plain trainable of Ray Tune's an estimate, a share of its device, a cap and retries."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from tuner.errors import InputError
from tuner.integrations.ray_tune.resource_requests import Estimate, Terms, given
from tuner.machine.devices import DeviceChoice, detect_devices
from tuner.placement.packing import limited
from tuner.placement.retry import OnOom
from tuner.spec.settings import Settings
from tuner.trial import GB, Device

WRAPPED = "is_memory_aware"  # an attribute of the classes that are returned


def memory_aware(
    trainable: Any,
    *,
    estimate: Estimate,
    device: DeviceChoice = "auto",
    device_memory_gb: float | None = None,
    gpu_memory_buffer_gb: float = 2.0,
    caps: bool = True,
    max_attempts: int = 4,
    retry_growth: float = 1.5,
    backoff: float = 5.0,
    backoff_max: float = 300.0,
    on_oom: OnOom = "grow",
) -> Any:
    """Wraps a trainable for ``ray.tune.Tuner``: each of its trials has a share of a device by what it needs.

    Tune's own loop runs the trials, as many side by side as their shares allow. A trial that takes more than its
    share fails alone, and Tune runs it again from its last checkpoint with a larger one. It is the same trial in
    Tune's results, which have ``attempts``, ``gpu_fraction``, ``estimated_memory_gb`` and ``peak_memory_gb`` besides.

    Args:
        trainable: a function of a configuration, or a class of ``ray.tune.Trainable``; as it is, or out of
            ``tune.with_parameters`` or ``tune.with_resources``, whose CPUs and custom resources stay.
        estimate: what a trial's process takes from its device: a number of GB, or a function that gives one, or a
            ``MemoryEstimate``, for a configuration.
        device: "cuda", "cpu" for the machine's RAM, or "auto" for GPUs where there are any; of this machine, or of
            the cluster that Ray is connected to.
        device_memory_gb: use no more of a device than if it had this much.
        gpu_memory_buffer_gb: what is left alone on each device.
        caps: end a trial that outgrows its share, before it takes its neighbours'.
        max_attempts: a trial may run out of memory so many times.
        retry_growth: what its share is multiplied by after that, up to a whole device.
        backoff: the first retry waits up to so many seconds for its memory to be free, further ones twice as long.
        backoff_max: but none longer than this.
        on_oom: "grow", or "fail" for no retries.

    Returns:
        A class of ``ray.tune.Trainable``, with the trainable's name.

    Raises:
        InputError: something given cannot be used, or every trial needs more than there is.
    """
    options = {name: value for name, value in locals().items() if name in Settings.__dataclass_fields__}
    settings = Settings.from_options(options)
    settings.check()
    if on_oom == "accumulate":
        raise InputError(
            'on_oom="accumulate": a trainable of Tune\'s decides its batches itself; use "grow" or "fail"'
        )
    base = _class_of(trainable)
    if hasattr(base, WRAPPED):
        raise InputError(f"trainable {base.__name__}: it is memory-aware already: wrap it once")
    if not callable(estimate):
        given(estimate)
    devices = _devices(device)
    if device_memory_gb is not None:
        devices = [limited(each, int(device_memory_gb * GB)) for each in devices]
    terms = Terms(base.__name__, estimate, devices, settings)
    if not callable(estimate) and (refusal := terms.refusal(given(estimate))):
        raise InputError(refusal)
    from tuner.integrations.ray_tune.trainable import wrapped

    return wrapped(base, terms)


def _class_of(trainable: Any) -> Any:
    """The trainable as a class of Tune's.

    Raises:
        InputError: it is none.
    """
    from ray.tune import Trainable
    from ray.tune.trainable import wrap_function

    if inspect.isclass(trainable) and issubclass(trainable, Trainable):
        return trainable
    if inspect.isclass(trainable) or not callable(trainable):
        raise InputError(
            f"trainable {trainable!r}: must be a function of a configuration, or a class of ray.tune.Trainable"
        )
    name = getattr(trainable, "__name__", type(trainable).__name__)
    try:
        found = wrap_function(trainable)
    except (ValueError, TypeError) as error:
        raise InputError(f"trainable {name}: must take one argument, the configuration") from error
    found.__name__ = name
    return found


def _devices(choice: DeviceChoice) -> Sequence[Device]:
    """The devices of the cluster that Ray is connected to, or of this machine."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and len(ray.nodes()) > 1:
        from tuner.execution.nodes import cluster_devices

        return cluster_devices(choice)
    return detect_devices(choice)
