"""A study's use of NVIDIA's MPS: on which GPUs, and what the plan says. It is off by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.decisions.packing import Plan
from tuner.errors import ParameterError, option
from tuner.machine.mps import CONTROL, MpsDaemons, control_program, users_daemon
from tuner.reporting.console import print_text
from tuner.spec.groups import MpsChoice
from tuner.trial import Device

if TYPE_CHECKING:
    from rich.console import Console


def check_mps(choice: MpsChoice, devices: Sequence[Device]) -> None:
    """Refuses "on" if MPS is not available.

    Raises:
        InputError: there is no GPU, or neither NVIDIA's program nor a daemon of the user's.
    """
    if choice != "on":
        return
    remedy = f"give {option('mps', 'auto')}, or leave it out"
    if all(device.kind != "cuda" for device in devices):
        raise ParameterError("mps", choice, "there is no GPU to train on", remedy)
    if control_program() is None and not users_daemon():
        raise ParameterError("mps", choice, f"{CONTROL} of NVIDIA's driver is not on the path", remedy)


def start_mps(choice: MpsChoice, daemons: MpsDaemons, plan: Plan, console: Console) -> dict[str, str]:
    """Starts the daemons of a plan; returns the folder of each GPU's daemon by UUID.

    If a daemon does not start, a line says so, and its GPU is used without MPS.
    """
    devices, reason = shared_gpus(plan)
    if choice == "off" or reason:
        return {}
    if users := users_daemon():
        return {device.uuid: users for device in devices}
    for device, fault in daemons.start(devices).items():
        print_text(console, _line(f"off for {device.label}: {fault}"))
    return daemons.pipes


def mps_line(choice: MpsChoice, plan: Plan) -> str:
    """What a plan says of MPS; empty if it was not asked for."""
    if choice == "off":
        return ""
    devices, reason = shared_gpus(plan)
    if reason:
        return _line(f"off: {reason}")
    users = users_daemon()
    whose = f"your own daemon in {users}" if users else "a daemon of the study's for each"
    return _line(f"on for {', '.join(device.label for device in devices)}: {whose}")


def shared_gpus(plan: Plan) -> tuple[tuple[Device, ...], str]:
    """The GPUs of this machine that run several trials at once, or the reason why MPS is not used."""
    gpus = [(device, slots) for device, slots in zip(plan.devices, plan.slots, strict=True) if device.kind == "cuda"]
    whole = [(device, slots) for device, slots in gpus if not device.node_id and device.instance is None]
    shared = tuple(device for device, slots in whole if slots > 1)
    if shared and (users_daemon() or control_program() is not None):
        return shared, ""
    if shared:
        return (), f"{CONTROL} is not on the path"
    if whole:
        return (), "no GPU has several workers"
    return (), "it is for whole GPUs of this machine, not of a cluster" if gpus else "there is no GPU"


def _line(text: str) -> str:
    return f"{'mps':<10} {text}"
