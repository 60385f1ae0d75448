"""The interface of an estimator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from tuner.workloads.base import Workload

if TYPE_CHECKING:
    from tuner.trial import Config, Device, MemoryEstimate
    from tuner.workloads.base import Trainable


class Estimator(ABC):
    """Estimates the memory that training a configuration takes.

    ``tuner --help`` imports the estimators, so they import torch and other large packages within ``estimate``.
    """

    name: ClassVar[str]  # the value of ``memory_estimation``, and of an estimate's ``method``
    # Measured peaks correct its error: for every configuration the same parts are exact, and the same factor fits
    # the others.
    can_be_calibrated: ClassVar[bool] = False
    takes_real_step: ClassVar[bool] = False  # a workload's method that fails here fails in training, too

    def serves(self, workload: Trainable) -> bool:
        """Whether it is tried without being asked for: where a model and its loss are known."""
        return isinstance(workload, Workload)

    @abstractmethod
    def estimate(
        self, workload: Trainable, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """The uncalibrated estimate of a complete configuration.

        The GPU need not be present, unless ``takes_real_step``. ``data`` is the result of ``workload.load_data``.

        Raises:
            TunerError: the estimator cannot be used for this configuration; the text says why.
        """
