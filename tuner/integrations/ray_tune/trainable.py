"""The class that Tune is given in place of a trainable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.tune.trainable import FunctionTrainable

from tuner.errors import InputError
from tuner.integrations.ray_tune.attempt import Attempt
from tuner.integrations.ray_tune.resource_requests import share_of
from tuner.integrations.ray_tune.share import Share

if TYPE_CHECKING:
    from tuner.integrations.ray_tune.resource_requests import Terms

SAME_RESULT = "__duplicate__"  # what Tune's wrapper of a function reports at its end


def wrapped(base: Any, terms: Terms) -> Any:
    """A child of a class of Tune's, which is the same in everything but memory."""

    class MemoryAware(base):  # type: ignore[misc]
        is_memory_aware = True

        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> Share:
            return share_of(terms, config, base.default_resource_request(config))

        def setup(self, config: dict[str, Any], **parameters: Any) -> None:
            share = self.trial_resources
            if not isinstance(share, Share):
                raise InputError(
                    f"{terms.name}: tune.with_resources() takes its share away: apply it before memory_aware()"
                )
            if parameters and issubclass(base, FunctionTrainable):
                raise InputError(
                    f"{terms.name}: tune.with_parameters() cannot reach it: apply it before memory_aware()"
                )
            self._attempt = Attempt(share, terms.policy, caps=terms.settings.caps)
            self._is_set_up = False
            if not self._attempt.has_failed:
                self._attempt.wait_for_room()
                with self._attempt.postponing():
                    super().setup(config, **parameters)
                    self._is_set_up = True

        def load_checkpoint(self, checkpoint: Any) -> None:
            if not self._attempt.has_failed:
                with self._attempt.postponing():
                    super().load_checkpoint(checkpoint)

        def step(self) -> dict[str, Any]:
            with self._attempt.computing():
                result: dict[str, Any] = super().step()
            if not isinstance(result, dict) or SAME_RESULT in result:
                return result
            return {**self._attempt.figures(), **result}

        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            with self._attempt.computing():
                return super().save_checkpoint(checkpoint_dir)

        def cleanup(self) -> None:
            if self._is_set_up:
                super().cleanup()

    MemoryAware.__name__ = MemoryAware.__qualname__ = base.__name__
    MemoryAware.__doc__ = base.__doc__
    return MemoryAware
