"""Chooses where a study's trials run: in this process, in a child process, or in Ray's workers."""

from collections.abc import Sequence
from pathlib import Path

from tuner.decisions.plan import Plan
from tuner.errors import InputError, option
from tuner.execution.executor import Executor, ExecutorOptions, in_fresh_processes
from tuner.spec.settings import Settings
from tuner.trial import Device
from tuner.workloads.task import Tasks


def make_executor(settings: Settings) -> Executor:
    """The executor before there is a plan."""
    if settings.in_process:
        from tuner.execution.in_process import InProcessExecutor

        return InProcessExecutor(**_options(settings))
    from tuner.execution.ray_executor import RayExecutor

    return RayExecutor(address=settings.cluster, **_options(settings))


def several_expected(settings: Settings, devices: Sequence[Device], trials: int) -> bool:
    """Whether the plan will have several workers, as far as that is known without estimates."""
    most = min(settings.most_workers or trials, trials, sum(device.cores or trials for device in devices))
    return most > 1 or settings.cluster is not None


def for_plan(executor: Executor, plan: Plan, settings: Settings) -> Executor:
    """The executor for a plan: a child process for a single worker, unless Ray has started.

    Raises:
        InputError: Ray is needed, and no folder can hold its sockets.
    """
    from tuner.execution.ray_executor import RayExecutor

    if not isinstance(executor, RayExecutor) or settings.cluster is not None:
        return executor
    from tuner.execution.cluster import connected, usable_base

    if connected():
        return executor
    may_be_more = settings.estimates_memory and plan.bound in ("memory", "RAM")  # once peaks are known
    if executor.started or sum(plan.slots) > 1 or may_be_more:
        usable_base()
        _check_hidden()
        return executor
    from tuner.execution.child_executor import ChildExecutor

    return ChildExecutor(**_options(settings))


def _check_hidden() -> None:
    """Raises ``InputError`` if Ray's workers, which search the current folder first, would not find this package."""
    if (file := Path("tuner.py")).is_file():
        remedy = f"rename it, or give {option('max_workers', 1)}"
        raise InputError(f"{file.absolute()} hides the package tuner from Ray's workers: {remedy}")


def processes_line(plan: Plan, tasks: Tasks, settings: Settings) -> str:
    """What a plan says of processes in which one trial follows another; empty if each trial has its own."""
    if not settings.in_process and in_fresh_processes(settings.fresh_processes, plan, tasks):
        return ""
    where = "this one" if settings.in_process else f"warm ones ({option('fresh_processes', 'on')} for one each)"
    return f"{'processes':<10} {where}: settings that a trial changes are put back, modules and classes are not"


def _options(settings: Settings) -> ExecutorOptions:
    return {
        "expandable_segments": settings.expandable_segments,
        "caps": settings.caps,
        "checkpoint_seconds": settings.checkpoint_seconds,
        "fresh_processes": settings.fresh_processes,
    }
