"""Has the ranks of a trial find each other, as ``torchrun`` does."""

import os
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import psutil

from tuner.trial import LOOPBACK, RANKS, Placement

Event = TypeVar("Event")
BACKEND = "TUNER_BACKEND"  # a variable: what ranks exchange by, as in ``init_process_group``
JOIN_SECONDS = 600  # for the other ranks to start, and to take part in each exchange
EVALUATION_SECONDS = 86_400  # in place of that where the others wait for rank 0 to evaluate


@contextmanager
def joined(place: Placement | None, *, by_itself: bool = False, seconds: float = JOIN_SECONDS) -> Iterator[None]:
    """Sets the variables of ``torchrun`` for the block, and ``torch.distributed``.

    A rank sees one GPU only, so that its ``LOCAL_RANK`` is 0 there. A script joins the others ``by_itself``. If its
    configuration says that it has one rank, a trial has all that, too.
    """
    if place is None or RANKS not in place.trial.config:
        yield
        return
    (size, nodes), here, gpu = place.trial.shape, place.trial.shape.ranks_per_node, place.device.kind == "cuda"
    node, local = divmod(place.rank, here)
    variables = {"RANK": place.rank, "WORLD_SIZE": size, "LOCAL_RANK": 0 if gpu else local, "LOCAL_WORLD_SIZE": here}
    variables |= {"GROUP_RANK": node, "GROUP_WORLD_SIZE": nodes, "ROLE_RANK": place.rank, "ROLE_WORLD_SIZE": size}
    variables |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "MASTER_PORT": place.port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.environ.update(MASTER_ADDR=place.address, TORCHELASTIC_RUN_ID=place.trial.trial_id)
    if interface := interface_to(place.address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if nodes > 1:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    if by_itself:
        yield
        return
    import torch.distributed as dist  # not before: a function without torch needs 260 MB less

    usual = "cpu:gloo,cuda:nccl" if gpu and dist.is_nccl_available() else "gloo"
    backend = os.environ.get(BACKEND, usual)
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    try:
        yield
    except BaseException:
        with suppress(Exception):  # to destroy it, NCCL would wait for ranks that may wait for this one
            dist.distributed_c10d._abort_process_group()
        raise
    if dist.is_initialized():
        dist.destroy_process_group()


def together(training: Iterator[Event], place: Placement) -> Generator[Event, None, None]:
    """A workload's training, whose ranks find each other now, before the trial's cap: that starts threads."""
    trained = _trained(training, place)
    next(trained)
    return trained  # type: ignore[return-value]


def _trained(training: Iterator[Event], place: Placement) -> Generator[Event | None, None, None]:
    with joined(place, seconds=EVALUATION_SECONDS):
        yield None
        yield from training


def interface_to(address: str) -> str:
    """The name of the network interface by which this machine reaches an address; empty if that is not known."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 1))  # sends nothing
        local = probe.getsockname()[0]
    local = LOOPBACK if local.startswith("127.") else local
    names = (
        name
        for name, interfaces in psutil.net_if_addrs().items()
        if any(interface.address == local for interface in interfaces)
    )
    return next(names, "")
