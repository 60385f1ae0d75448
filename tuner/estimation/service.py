"""The one place that estimates and calibrates what configurations need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tuner.errors import InputError, TunerError, WorkloadError, option, spelled
from tuner.estimation import calibration
from tuner.estimation.calibration import Sample
from tuner.estimation.registry import AUTO, Method, can_be_calibrated, check_method, estimators
from tuner.trial import MAX_BATCH, UNNAMED, Configuration, Device, MemoryEstimate

if TYPE_CHECKING:
    from tuner.trial import Config
    from tuner.workloads.base import Workload

# The training loop reads these, and no allocation depends on them.
WITHOUT_MEMORY = ("lr", "epochs", MAX_BATCH)


def memory_key(config: Config) -> tuple[tuple[str, object], ...]:
    """What of a configuration decides its memory; configurations with the same key share an estimate."""
    return tuple((name, value) for name, value in config.items() if name not in WITHOUT_MEMORY)


class Estimated(NamedTuple):
    """An estimate as it was made, and corrected by what earlier trials took, if any are known."""

    raw: MemoryEstimate
    calibrated: MemoryEstimate


@dataclass(frozen=True)
class EstimationService:
    """Estimates what configurations need, and corrects that by what earlier trials on the device took.

    Raises:
        ParameterError: there is no such method.
    """

    # an estimator's name, or "auto". Where it cannot be used, the next in the registry's order is, and the estimate's
    # ``note`` says so.
    method: Method = AUTO
    calibration: bool = True  # correct by what earlier trials took
    expandable_segments: bool = False  # estimate for PyTorch's CUDA allocator with this option

    def __post_init__(self) -> None:
        check_method(self.method)

    def estimate_all(
        self, workload: Workload, configurations: Sequence[Configuration], data: object, device: Device
    ) -> list[Estimated]:
        """An estimate of each complete configuration; those that take the same memory share one.

        Raises:
            InputError: no method can be used for one of them, or the calibration file is damaged.
        """
        found: dict[tuple[tuple[str, object], ...], MemoryEstimate] = {}
        for configuration in configurations:
            key = memory_key(configuration.values)
            if key not in found:
                try:
                    found[key] = self.raw(workload, configuration.values, data, device)
                except InputError as error:
                    named = "" if configuration.name == UNNAMED else f"{configuration.name}: "
                    kind = WorkloadError if isinstance(error, WorkloadError) else InputError
                    raise kind(f"{named}{error.text}") from error
        raw = [found[memory_key(configuration.values)] for configuration in configurations]
        return list(map(Estimated, raw, self.calibrated(raw, workload.name, device.name)))

    def estimate(self, workload: Workload, config: Config, data: object, device: Device) -> MemoryEstimate:
        """The corrected estimate of one complete configuration.

        Raises:
            InputError: as ``estimate_all``.
        """
        return self.calibrated([self.raw(workload, config, data, device)], workload.name, device.name)[0]

    def raw(self, workload: Workload, config: Config, data: object, device: Device) -> MemoryEstimate:
        """The estimate of one complete configuration as it is made, by the method asked for or the next best.

        Raises:
            InputError: no method can be used for it; the text says why none.
            WorkloadError: the workload is why.
        """
        known = estimators()
        asked = [] if self.method == AUTO else [known[self.method]]
        causes: list[TunerError] = []
        reasons: list[str] = []
        fault: TunerError | None = None
        for estimator in dict.fromkeys([*asked, *known.values()]):
            try:
                found = estimator.estimate(
                    workload, config, data, device, expandable_segments=self.expandable_segments
                )
            except TunerError as error:
                reasons.append(f"not {estimator.name}: {error.text}")
                causes.append(error)
                if estimator.takes_real_step and isinstance(error, WorkloadError):
                    fault = error  # a step that was traced may have failed because it was traced
            else:
                found = replace(found, note=spelled("; ".join(reasons)))
                return calibration.with_headroom(found) if device.kind == "cpu" else found
        if fault is not None:
            raise fault
        why = "; ".join(reasons)
        raise InputError(f"the footprint cannot be estimated: {why}: give {option('model_memory_gb')}") from causes[0]

    def calibrated(self, estimates: Sequence[MemoryEstimate], workload: str, device: str) -> list[MemoryEstimate]:
        """The estimates, corrected by what trials of this workload took on this device, where that can be done.

        Raises:
            InputError: the calibration file is damaged.
        """
        known = calibration.load(self._key(workload, device)) if self.calibration else None
        return [calibration.apply(each, known) if known and can_be_calibrated(each) else each for each in estimates]

    def samples(self, workload: str, device: str) -> list[Sample]:
        """What estimates of this workload on this device are corrected by; empty without calibration.

        Raises:
            InputError: the calibration file is damaged.
        """
        return calibration.load_samples(self._key(workload, device)) if self.calibration else []

    def learn(self, workload: str, device: str, peaks: Iterable[tuple[MemoryEstimate, int]]) -> None:
        """Keeps the bytes that trials took beside their raw estimates, where they correct such.

        Raises:
            InputError: the calibration file is damaged or cannot be written.
        """
        samples = [calibration.to_sample(raw, peak) for raw, peak in peaks if can_be_calibrated(raw)]
        if samples:
            calibration.record(self._key(workload, device), samples)

    def _key(self, workload: str, device: str) -> str:
        return calibration.key(workload, device, self.expandable_segments)
