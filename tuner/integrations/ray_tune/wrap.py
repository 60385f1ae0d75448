"""``memory_aware``: gives a plain trainable of Ray Tune's an estimate, a share of its device, a cap and retries."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from ray.tune import Trainable
from ray.tune.trainable import FunctionTrainable, wrap_function

from tuner.decisions.capacity import limited
from tuner.errors import InputError, ParameterError
from tuner.estimation.estimators import with_contexts
from tuner.integrations.ray_tune.attempt import CappedAttempt
from tuner.integrations.ray_tune.resources import TrainableSpec, TrialResources, given_estimate, trial_resources
from tuner.machine.devices import DeviceChoice, detect_devices
from tuner.spec.commands import MemoryAwareOptions
from tuner.spec.options import public
from tuner.spec.settings import Settings
from tuner.trial import GB, Device

WRAPPED = "is_memory_aware"  # an attribute of the classes that are returned
SAME_RESULT = "__duplicate__"  # a key of the last result that Tune's wrapper of a function reports


@public(MemoryAwareOptions)
def memory_aware(options: MemoryAwareOptions) -> type:
    """Wraps a trainable for ``ray.tune.Tuner``: each of its trials gets the share of a device that it needs.

    Tune's own loop runs the trials, as many side by side as their shares allow. A trial that takes more than its
    share fails alone, and Tune runs it again from its last checkpoint with a larger one. It stays one trial in Tune's
    results, which also have ``attempts``, ``gpu_fraction``, ``estimated_memory_gb`` and ``peak_memory_gb``. The
    devices are those of this machine, or of the cluster that Ray is connected to.

    Returns:
        A subclass of ``ray.tune.Trainable`` with the trainable's name.

    Raises:
        InputError: an argument cannot be used, or every trial needs more memory than there is.
    """
    settings, estimate = Settings.of(options.given()), options.estimate
    if settings.on_oom == "accumulate":
        rule = 'a trainable of Tune decides its batches itself; use "grow" or "fail"'
        raise ParameterError("on_oom", settings.on_oom, rule)
    base = _class_of(options.trainable)
    if hasattr(base, WRAPPED):
        raise InputError(f"trainable {base.__name__}: it is memory-aware already: wrap it once")
    if not callable(estimate):
        given_estimate(estimate)
    devices = _devices(settings.device)
    if settings.device_memory_gb is not None:
        devices = [limited(device, int(settings.device_memory_gb * GB)) for device in devices]
    spec = TrainableSpec(base.__name__, estimate, devices, settings)
    if not callable(estimate) and (refusal := spec.refusal(given_estimate(estimate))):
        raise InputError(refusal)

    return wrapped(base, spec)


def _class_of(trainable: object) -> type:
    """The trainable as a class of Tune."""
    if inspect.isclass(trainable) and issubclass(trainable, Trainable):
        return trainable
    if inspect.isclass(trainable) or not callable(trainable):
        raise InputError(
            f"trainable {trainable!r}: must be a function of a configuration, or a subclass of ray.tune.Trainable"
        )
    name = getattr(trainable, "__name__", type(trainable).__name__)
    try:
        trainable_class: type = wrap_function(trainable)
    except (ValueError, TypeError) as error:
        raise InputError(f"trainable {name}: must take one argument, the configuration") from error
    trainable_class.__name__ = name
    return trainable_class


def _devices(choice: DeviceChoice) -> Sequence[Device]:
    """The devices of the cluster that Ray is connected to, or of this machine."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and len(ray.nodes()) > 1:
        from tuner.execution.nodes import cluster_devices

        return cluster_devices(choice, find=with_contexts())
    return detect_devices(choice)


def wrapped(base: Any, spec: TrainableSpec) -> type:
    """A subclass of a trainable of Tune with a memory share, a cap and retries."""

    class MemoryAware(base):  # type: ignore[misc]
        is_memory_aware = True

        @classmethod
        def default_resource_request(cls, config: dict[str, object]) -> TrialResources:
            return trial_resources(spec, config, base.default_resource_request(config))

        def setup(self, config: dict[str, object], **parameters: object) -> None:
            resources = self.trial_resources
            if not isinstance(resources, TrialResources):
                raise InputError(
                    f"{spec.name}: tune.with_resources() drops its resources: apply it before memory_aware()"
                )
            if parameters and issubclass(base, FunctionTrainable):
                raise InputError(
                    f"{spec.name}: tune.with_parameters() cannot reach it: apply it before memory_aware()"
                )
            self._attempt = CappedAttempt(resources, spec.policy, caps=spec.settings.caps, trainable=base)
            self._is_set_up = False
            if not self._attempt.has_failed:
                self._attempt.wait_for_room()
            if not self._attempt.has_failed:
                with self._attempt.postponing():
                    super().setup(config, **parameters)
                    self._is_set_up = True

        def load_checkpoint(self, checkpoint: object) -> None:
            if not self._attempt.has_failed:
                with self._attempt.postponing():
                    super().load_checkpoint(checkpoint)

        def step(self) -> dict[str, object]:
            with self._attempt.computing():
                result: dict[str, object] = super().step()
            if not isinstance(result, dict) or SAME_RESULT in result:
                return result
            return {**self._attempt.figures(), **result}

        def save_checkpoint(self, checkpoint_dir: str) -> object:
            with self._attempt.computing():
                return super().save_checkpoint(checkpoint_dir)

        def cleanup(self) -> None:
            if self._is_set_up:
                super().cleanup()
            self._attempt.close()

    MemoryAware.__name__ = MemoryAware.__qualname__ = base.__name__
    MemoryAware.__doc__ = base.__doc__
    return MemoryAware
