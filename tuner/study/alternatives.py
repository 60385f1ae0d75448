"""What an epoch would take if a configuration were trained in another way, which its workload names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tuner.errors import TunerError
from tuner.estimation.service import EstimationService, memory_key
from tuner.reporting.texts import rough
from tuner.spec.settings import Settings
from tuner.study.planning import estimation_service
from tuner.trial import Config, Device, Request
from tuner.workloads.protocols import Alternatives, optional
from tuner.workloads.task import Tasks, TrainingTask


def alternatives(tasks: Tasks, requests: Sequence[Request], device: Device, settings: Settings) -> list[str]:
    """A line for each workload that names ways to train: ``full graph, about 12 s an epoch; sampled, about 3 s``.

    It is of the workload's longest trial. A way is left out if it was timed neither now nor in an earlier study.
    """
    lines, service = list[str](), estimation_service(settings)
    for name, task in tasks.items():
        ways = optional(task.workload, Alternatives.alternatives)
        timed = [each for each in requests if each.trial.workload == name and each.seconds]
        if ways and timed:
            longest = max(timed, key=lambda each: each.seconds or 0.0)
            found = {
                way: _seconds(config, longest, task, device, service)
                for way, config in ways(longest.trial.config, task.data).items()
            }
            known = [f"{way}, about {rough(seconds)}" for way, seconds in found.items() if seconds]
            lines += ["; ".join([f"{known[0]} an epoch", *known[1:]])] if len(known) > 1 else []
    return lines


def _seconds(
    config: Config, own: Request, task: TrainingTask, device: Device, service: EstimationService
) -> float | None:
    if memory_key(config) == memory_key(own.trial.config):
        return own.estimate.epoch_seconds
    with suppress(TunerError):  # this way cannot be estimated
        return service.timed(task.workload, config, task.data, device)
    return None
