"""Whether a study uses NVIDIA's MPS, on which GPUs, and what the plan says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.errors import ParameterError, option
from tuner.machine.mps import CONTROL, MpsDaemons, control_program, users_daemon
from tuner.placement.packing import Plan
from tuner.reporting.console import print_text
from tuner.spec.groups import MpsChoice
from tuner.trial import Device

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class MpsUse:
    """What a study does with MPS."""

    devices: tuple[Device, ...] = ()  # whose workers are clients
    users: str = ""  # the folder of a daemon that the user has started; empty if the study starts its own
    reason: str = ""  # why there are no clients

    @property
    def text(self) -> str:
        """A line for the plan."""
        if self.reason:
            return _line(f"off: {self.reason}")
        whose = f"your own daemon in {self.users}" if self.users else "a daemon of the study's for each"
        return _line(f"on for {', '.join(device.label for device in self.devices)}: {whose}")


def check_mps(choice: MpsChoice, devices: Sequence[Device]) -> None:
    """Refuses "on" where MPS cannot be had.

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


def use_of_mps(choice: MpsChoice, plan: Plan) -> MpsUse:
    """What a study of this plan does with MPS: it is for GPUs of this machine on which several trials run at once."""
    if choice == "off":
        return MpsUse(reason="it was not asked for")
    gpus = [each for each in zip(plan.devices, plan.slots, strict=True) if each[0].kind == "cuda"]
    whole = [each for each in gpus if not each[0].node_id and each[0].instance is None]
    shared = tuple(device for device, slots in whole if slots > 1)
    if shared and (users := users_daemon()):
        return MpsUse(shared, users)
    if shared and control_program() is not None:
        return MpsUse(shared)
    if shared:
        return MpsUse(reason=f"{CONTROL} is not on the path")
    if whole:
        return MpsUse(reason="no GPU has several workers")
    return MpsUse(reason="it is for whole GPUs of this machine, not of a cluster" if gpus else "there is no GPU")


def start_mps(use: MpsUse, daemons: MpsDaemons, console: Console) -> dict[str, str]:
    """The folder of each GPU's daemon, by its UUID, after those of the study have been started.

    A line tells of a daemon that does not start; its GPU is used without MPS.
    """
    if use.users:
        return {device.uuid: use.users for device in use.devices}
    if not use.devices:
        return {}
    for device, reason in daemons.start(use.devices).items():
        print_text(console, _line(f"off for {device.label}: {reason}"))
    return daemons.pipes


def _line(text: str) -> str:
    return f"{'mps':<10} {text}"
