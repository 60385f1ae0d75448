"""The class that replaces a trainable in Tune."""

from __future__ import annotations

from typing import Any

from ray.tune.trainable import FunctionTrainable

from tuner.errors import InputError
from tuner.integrations.ray_tune.attempt import CappedAttempt
from tuner.integrations.ray_tune.resources import TrialResources, trial_resources
from tuner.integrations.ray_tune.trainable_spec import TrainableSpec

SAME_RESULT = "__duplicate__"  # a key of the last result that Tune's wrapper of a function reports


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
                    f"{spec.name}: tune.with_resources() takes its resources away: apply it before memory_aware()"
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
