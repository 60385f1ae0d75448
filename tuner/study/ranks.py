"""Refuses trials of several ranks that cannot run, and names the key or the option that asks for them."""

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial

from tuner.errors import InputError, ParameterError, joined, option
from tuner.hyperparameters import is_auto
from tuner.reporting.texts import count_text
from tuner.search.optuna_names import PBT
from tuner.spec.settings import Settings
from tuner.trial import AUTO, MOST_RANKS, NODES, RANKS, Device, Trial
from tuner.workloads.base import Trainable, Workload

LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "mpirun")


def refusal(trial: Trial, settings: Settings, rule: str, remedy: str = "", key: str = RANKS) -> InputError:
    """The error of a trial's key, or of the option that sets it for all trials."""
    value = trial.config.get(key, 1)
    if value == getattr(settings, key):
        return ParameterError(key, value, rule, remedy)
    return InputError(joined(f"{trial.name}: {key} {value}", rule, remedy, by=": "))


def check_ranks(workload: Trainable, trial: Trial, settings: Settings) -> None:
    """Refuses a wrong number of ranks, and several ranks that could not share the work."""
    wrong, ranks, nodes = partial(refusal, trial, settings), trial.config.get(RANKS, 1), trial.config.get(NODES, 1)
    if type(ranks) is not int or not 1 <= ranks <= MOST_RANKS:
        raise wrong(f"must be a whole number from 1 to {MOST_RANKS}, or {AUTO}")
    if type(nodes) is not int or nodes < 1 or ranks % nodes:
        raise wrong(f"must divide the number of ranks, which is {ranks}", key=NODES)
    if ranks == 1:
        return
    launcher = os.path.basename(getattr(workload, "program", "")).removeprefix("-m ")
    if launcher in LAUNCHERS:
        raise wrong(f"{launcher} starts ranks itself", f"leave out {launcher} with its options, or the ranks")
    if not isinstance(workload, Workload) and workload.asks:
        raise wrong(f"{workload.name} trains in one process", "leave it out, or tune a function or a script")
    if isinstance(workload, Workload):
        key, parts = workload.memory_scales_with, ranks * trial.micro_batches
        if key is None:
            raise wrong(f"{workload.name} has no batch size to divide", "leave it out")
        rule = f"a batch is divided into {parts} parts, and {key} of {trial.name} is {trial.config[key]}"
        if is_auto(trial.config):
            remedy = "optimize_batch_size: 0" if trial.config.get("optimize_batch_size") else f"a number as {key}"
            raise wrong(rule, f"give {remedy}")
        if int(trial.config[key]) % parts:
            raise wrong(rule, f"choose another {key}")
    if settings.in_process or settings.scheduler_name == PBT:
        other = option("in_process", True) if settings.in_process else option("scheduler", PBT)
        raise wrong(f"not with {other}", "leave one of them out")


def check_place(trial: Trial, devices: Sequence[Device], settings: Settings) -> None:
    """Refuses more ranks than there are machines or GPUs for."""
    on_each, nodes = sorted(Counter(device.node_id for device in devices).values()), trial.shape.nodes
    if nodes > len(on_each):
        rule = f"there is no more than {count_text(len(on_each), 'machine')}"
        raise refusal(trial, settings, rule, f"join a larger cluster by {option('address')}", NODES)
    if devices[0].kind == "cuda" and trial.shape.ranks_per_node > (most := on_each[-nodes]):
        some = "no machine has" if nodes == 1 else f"no {nodes} machines have each"
        raise refusal(trial, settings, f"{some} more than {count_text(most, 'GPU')}", "give fewer")
