"""The nodes of a cluster: their devices, whether they are alive, and their kernels' OOM kills.

The parts of Ray that tuner uses have their types here, as Ray has none.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NewType, Protocol, TypedDict, TypeVar, cast

from tuner.errors import InputError, ParameterError, last_line
from tuner.execution.cluster import PORT_SECONDS
from tuner.machine.devices import DeviceChoice
from tuner.machine.processes import port_answers, signal_text
from tuner.trial import Device

Detect = Callable[[DeviceChoice], tuple[Device, ...]]  # what finds a node's devices, sent there as ``teller``'s
T_co = TypeVar("T_co", covariant=True)
ObjectRef = NewType("ObjectRef", object)
VMSTAT = Path("/proc/vmstat")
PROBE_SECONDS = 150  # a node may measure the contexts of its GPUs first
LOOK_SECONDS = 2  # between two checks of the nodes
# A head that has not answered for this time counts as dead. After 60 s Ray would end this process.
HEAD_SECONDS = 20
LOG_BYTES = 2**16  # the length of a log's end that is searched
FAULTS = {"Segmentation fault": "SIGSEGV", "Bus error": "SIGBUS", "Aborted": "SIGABRT"}  # faulthandler's words
CRASH = re.compile(rf"\*\*\* (SIG[A-Z]+) received at|Fatal Python error: ({'|'.join(FAULTS)})".encode())


class Remote(Protocol[T_co]):
    """A remote function, an actor's method or its class; ``T_co`` is what a call returns at once."""

    def options(self, **options: object) -> Remote[T_co]:
        """The same with other options of Ray's."""

    def remote(self, *arguments: object) -> T_co:
        """Calls it."""


class WorkerHandle(Protocol):
    """A Ray actor of ``tuner.execution.child.Worker``."""

    run: Remote[Iterator[ObjectRef]]
    answer: Remote[ObjectRef]
    ping: Remote[ObjectRef]


class PlacementGroup(Protocol):
    """A reservation of resources on a node."""

    def wait(self, timeout_seconds: float) -> bool:
        """Whether the resources are reserved within this time."""


class Node(TypedDict):
    """An entry of ``ray.nodes()``."""

    NodeID: str
    Alive: bool
    NodeManagerAddress: str
    NodeManagerHostname: str
    Resources: dict[str, float]


def cluster_devices(
    choice: DeviceChoice,
    packages: Sequence[str] = (),
    left_out: list[str] | None = None,
    find: Detect | None = None,
) -> tuple[Device, ...]:
    """The devices of all nodes of the connected cluster, as the nodes see them.

    "auto" means GPUs if any node has one, else the nodes' RAM. Nodes without a CPU in Ray are left out. So are those
    that do not answer or lack what trials need, of which a text is added to ``left_out``.

    Raises:
        InputError: every node is left out, or there is no such device.
    """
    nodes, devices, left_out = usable_nodes(), list[Device](), [] if left_out is None else left_out
    for answer, node in ask(nodes, nodes, choice, packages, find).items():
        try:
            devices += answered(answer, *node)
        except InputError as error:
            left_out.append(error.text)
    if left_out and not devices:
        raise InputError("; ".join(left_out))
    gpus = [device for device in devices if device.kind == "cuda"]
    if choice == "cuda" and not gpus:
        raise ParameterError("device", choice, f"none of the cluster's {len(nodes)} nodes has a GPU that Ray may use")
    if not devices:
        raise InputError("Ray has no CPU on any node of the cluster")
    return tuple(gpus or devices)


def usable_nodes() -> list[Node]:
    """The living nodes of the connected cluster that have a CPU in Ray."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def ask(
    nodes: Sequence[Node],
    usable: Sequence[Node],
    choice: DeviceChoice,
    packages: Sequence[str],
    find: Detect | None = None,
) -> dict[ObjectRef, tuple[Node, str]]:
    """Asks nodes for their devices: by the answer to come, each with its name among all that are ``usable``.

    A node must have what this one has: tuner, Python, torch and the ``packages``.
    """
    hosts, look = _hosts(usable), teller(packages)
    ours = look()

    def tell(choice: DeviceChoice) -> tuple[dict[str, str], dict[str, str], tuple[Device, ...]]:
        if (found := look()) != ours:
            return ours, found, ()
        from tuner.machine.devices import detect

        return ours, found, (find or detect)(choice)

    return {
        on_node(tell, node["NodeID"]).remote(node_choice): (node, hosts[node["NodeID"]])
        for node in nodes
        if node["NodeID"] in hosts and (node_choice := _choice_of(node, choice))
    }


def answered(answer: ObjectRef, node: Node, host: str) -> tuple[Device, ...]:
    """What Ray may use of the devices that a node reports; raises ``InputError`` if it does not answer."""
    import ray

    try:
        told = cast(tuple[dict[str, str], dict[str, str], tuple[Device, ...]], ray.get(answer, timeout=PROBE_SECONDS))
    except (ray.exceptions.RayError, InputError) as error:
        raise InputError(
            f"node {host} is left out: it does not report its devices: {last_line(str(error))}"
        ) from error
    ours, found, devices = told
    if lacks := differences(ours, found):
        raise InputError(f"node {host} is left out: it has {', '.join(lacks)}: install there what is here")
    free = ray._private.state.available_resources_per_node().get(node["NodeID"], {})
    return tuple(replace(device, host=host) for device in limited_by_ray(devices, node, free))


def teller(packages: Sequence[str]) -> Callable[[], dict[str, str]]:
    """A function that tells the versions of what a node has; empty texts stand for what it lacks.

    It needs no tuner there: functions within functions are sent with their code.
    """

    def look() -> dict[str, str]:
        import hashlib
        import sys
        from importlib import metadata, util
        from pathlib import Path

        found = {"Python": "{}.{}".format(*sys.version_info)}
        for name in ("tuner", "torch", *packages):
            spec = util.find_spec(name) if name != "Python" else None
            found.setdefault(name, "here" if spec else "")
        if found["torch"]:
            found["torch"] = metadata.version("torch").partition("+")[0]
        if (spec := util.find_spec("tuner")) and spec.origin:
            files = sorted(Path(spec.origin).parent.rglob("*.py"))
            found["tuner"] = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]
        return found

    return look


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What a node has that differs from what this one has, in words."""
    texts = []
    for name, version in ours.items():
        if not theirs.get(name):
            texts.append(f"no {name}")
        elif theirs[name] != version:
            texts.append("another tuner" if name == "tuner" else f"{name} {theirs[name]}, not {version}")
    return texts


def oom_kills(vmstat: Path = VMSTAT) -> int:
    """The number of OOM kills by this machine's kernel since it started."""
    try:
        fields = dict(line.split() for line in vmstat.read_text().splitlines())
    except OSError:
        return 0
    return int(fields.get("oom_kill", 0))


def post_mortem(pid: int | None) -> tuple[int, str]:
    """This node's ``oom_kills``, and the signal that ended a worker by Ray's logs; empty if they lack it.

    Ray's processes log crashes, but neither SIGKILL nor an exit code.
    """
    import ray

    node = ray._private.worker._global_node
    name = crash_signal(Path(node.get_logs_dir_path()), pid) if node and pid else ""
    return oom_kills(), f"its process {signal_text(name)}" if name else ""


def crash_signal(logs: Path, pid: int) -> str:
    """The signal in the logs of one of Ray's processes, as written by Ray or by Python's faulthandler."""
    for log in (*logs.glob(f"python-core-worker-*_{pid}.log"), *logs.glob(f"worker-*-{pid}.err")):
        with suppress(OSError), log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            if crashes := CRASH.findall(file.read()):
                name, words = (group.decode() for group in crashes[-1])
                return name or FAULTS[words]
    return ""


def on_node(function: Callable[..., object], node_id: str) -> Remote[ObjectRef]:
    """The function as a Ray task on one node, without resources and retries."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pinned = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task: Remote[ObjectRef] = ray.remote(function)
    return task.options(num_cpus=0, max_retries=0, scheduling_strategy=pinned)


def limited_by_ray(devices: Sequence[Device], node: Node, free: Mapping[str, float]) -> list[Device]:
    """A node's devices, limited to the GPUs, CPUs and memory that Ray has there.

    Of a node that is free in part, that part is taken. For one without a free device the study waits.
    """
    resources: Mapping[str, float] = node["Resources"]
    cpus = int(resources.get("CPU", 0))
    gpus = [device for device in devices if device.kind == "cuda"][: min(cpus, int(resources.get("GPU", 0)))]
    each = cpus // max(1, len(gpus))
    free_cpus, free_gpus, memory = (
        int(free.get("CPU", 0)),
        min(len(gpus), int(free.get("GPU", 0))),
        resources.get("memory", 0.0),
    )
    if free_cpus >= 1 and (free_gpus if gpus else free.get("memory")):
        each, memory = min(each, free_cpus // max(1, free_gpus)), free.get("memory", memory)
    limited = []
    for device in gpus or [device for device in devices if device.kind == "cpu"]:
        cores = min(device.cores, max(1, each))
        total = device.total_bytes if gpus else min(device.total_bytes, int(memory))
        ram = min(device.ram_bytes, int(resources.get("memory", device.ram_bytes)))
        usable = replace(device, node_id=node["NodeID"], cores=cores, ram_bytes=ram)
        limited.append(replace(usable, total_bytes=total, free_bytes=min(device.free_bytes, total)))
    return limited


def on_one_machine(nodes: Sequence[Node], node_ids: Collection[str]) -> bool:
    """Whether the nodes with these ids have the same address and host name."""
    chosen = [node for node in nodes if node["NodeID"] in node_ids]
    return len({(node["NodeManagerAddress"], node["NodeManagerHostname"]) for node in chosen}) == 1


class NodeWatch:
    """Detects nodes that die or join. ``own_node`` is the id of the node to which this process is connected."""

    def __init__(self, planned: Iterable[str]) -> None:
        """``planned`` are the ids of nodes that the study was planned for: others have joined since."""
        import ray

        self._ray = ray
        self.own_node: str = ray.get_runtime_context().get_node_id()
        self._head = ray.get_runtime_context().gcs_address
        self.looked = self._answered = time.monotonic()  # when nodes were looked at, and the head answered
        self.alive = {self.own_node, *filter(None, planned)}  # the ids of nodes that are there, or have died
        self.joined: list[Node] = []  # those that have joined since; whoever uses them takes them out
        self._died: dict[str, str] = {}
        self.cluster_lost = ""  # why everything is lost; empty while it is not

    def died(self, *, now: bool = False) -> Mapping[str, str]:
        """The reasons why nodes have died since the beginning, by node id.

        Ray is asked at most every ``LOOK_SECONDS``, or ``now``.
        """
        if now or time.monotonic() - self.looked > LOOK_SECONDS:
            self.looked = time.monotonic()
            self._look()
        return self._died

    @property
    def head_answers(self) -> bool:
        """Whether Ray's head answers now; otherwise calls to it would hang, until Ray ends this process."""
        return port_answers(self._head, PORT_SECONDS)

    def _look(self) -> None:
        if port_answers(self._head, PORT_SECONDS):  # else ``ray.nodes`` would hang
            self._answered = time.monotonic()
            nodes: dict[str, Node] = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
            self.joined += [node for node_id, node in nodes.items() if node_id not in self.alive]
            self.alive |= nodes.keys()
            alive = set(nodes)
            if self.own_node not in alive:  # Ray then ends every worker that this process has
                self.cluster_lost = "the node that tuner runs on died"
        elif time.monotonic() - self._answered > HEAD_SECONDS:
            self.cluster_lost = f"Ray's head at {self._head} does not answer"
            return
        else:
            return
        self._died |= dict.fromkeys(self.alive - alive - self._died.keys(), "its node died")


def _choice_of(node: Node, choice: DeviceChoice) -> DeviceChoice | None:
    """The devices to look for on a node; None if Ray has no GPU there and only GPUs are wanted."""
    if node["Resources"].get("GPU", 0) >= 1:
        return choice
    return None if choice == "cuda" else "cpu"


def _hosts(nodes: Sequence[Node]) -> dict[str, str]:
    """A name for each node by id: its address, with a part of the id if several nodes have the same address."""
    uses = Counter(node["NodeManagerAddress"] for node in nodes)
    return {
        node["NodeID"]: node["NodeManagerAddress"]
        + (f"-{node['NodeID'][:6]}" if uses[node["NodeManagerAddress"]] > 1 else "")
        for node in nodes
    }
