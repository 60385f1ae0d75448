"""What an estimator is: one way to know what training a configuration will take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from tuner.trial import Config, Device, MemoryEstimate
    from tuner.workloads.base import Workload


class Estimator(ABC):
    """One way to estimate; a file of ``tuner.estimation.estimators`` defines each.

    The registry imports these files for ``tune --help``, so they import torch and the like inside ``estimate``.

    Attributes:
        name: what ``memory_estimation`` and an estimate's ``method`` call it.
        order: its place among those that are tried one after another, where no other was asked for or that fails.
        can_be_calibrated: whether its error is one that the peaks of finished trials correct: the same parts are
            exact, and the others off by the same factor, whatever the configuration.
        takes_real_step: whether a workload's method that fails here fails in training, too.
    """

    name: ClassVar[str]
    order: ClassVar[int]
    can_be_calibrated: ClassVar[bool] = False
    takes_real_step: ClassVar[bool] = False

    @abstractmethod
    def estimate(
        self, workload: Workload, config: Config, data: object, device: Device, *, expandable_segments: bool
    ) -> MemoryEstimate:
        """What training a complete configuration takes of the device, without calibration.

        Args:
            workload: what is trained.
            config: a complete configuration.
            data: what ``workload.load_data`` returned.
            device: where; a GPU need not be there, unless a real step is taken.
            expandable_segments: whether PyTorch's CUDA allocator has this option.

        Raises:
            TunerError: it cannot be used for this configuration; the text says why.
        """
