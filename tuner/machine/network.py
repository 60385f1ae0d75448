"""This machine's network: free ports, and the interface by which another machine is reached."""

import socket

import psutil

from tuner.trial import LOOPBACK


def free_port(address: str = LOOPBACK) -> int:
    """A free port at this machine's address."""
    with socket.create_server((address, 0)) as free:
        return int(free.getsockname()[1])


def interface_to(address: str) -> str:
    """The name of the network interface by which this machine reaches an address; empty if that is not known."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 1))  # sends nothing
        own = probe.getsockname()[0]
    own = LOOPBACK if own.startswith("127.") else own
    found = (name for name, known in psutil.net_if_addrs().items() if any(one.address == own for one in known))
    return next(found, "")
