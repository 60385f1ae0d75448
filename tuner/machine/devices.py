"""The devices of this machine: its GPUs as NVML reports them, or its RAM within the process's cgroup.

NVML needs neither torch nor a CUDA context, and it sees the memory that other processes hold.
"""

import os
import platform
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil

from tuner.errors import InputError, ParameterError
from tuner.machine.allocator_settings import allocator_settings
from tuner.trial import GB, Device

DeviceChoice = Literal["auto", "cpu", "cuda"]
CGROUP = Path("/sys/fs/cgroup")
IDLE_SECONDS = 0.2
MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class NvmlDevice:
    """A GPU or a MIG instance, as NVML lists it."""

    handle: object
    index: int  # the GPU's ordinal
    uuid: str
    instance: int | None = None  # a MIG instance's number on its GPU
    # The GPU instance whose memory it uses: compute instances share it (CUPTI's manual, "Multi-Instance GPU").
    gpu_instance: int | None = None
    # A MIG instance's name until driver 470: MIG-<the GPU's UUID>/<GPU instance>/<compute instance>.
    alias: str = ""

    def is_named(self, word: str) -> bool:
        """Whether the word is its UUID, or a prefix of it."""
        return self.uuid.startswith(word) or self.alias.startswith(word)


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as NVML lists it, and its MIG instances; None if it is not in MIG mode."""

    whole: NvmlDevice
    instances: tuple[NvmlDevice, ...] | None = None

    @property
    def devices(self) -> tuple[NvmlDevice, ...]:
        """The devices that processes can use: none if it is in MIG mode and has no instance."""
        return (self.whole,) if self.instances is None else self.instances


def detect_devices(choice: DeviceChoice = "auto") -> tuple[Device, ...]:
    """The devices for trials: the visible GPUs for "cuda", RAM for "cpu". "auto" chooses GPUs if there are any.

    Raises ``InputError`` if the choice is "cuda" and there is no GPU, or if torch could not use one.
    """
    if choice not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device {choice!r}: choose auto, cpu or cuda")
    if choice == "cpu":
        return (ram_device(),)
    if not torch_has_cuda():
        if choice == "cuda":
            raise ParameterError("device", choice, "the installed torch is a build for the CPU; install one for CUDA")
        return (ram_device(),)
    gpus = beside(ram_device(), cuda_devices())
    if choice == "cuda" and not gpus:
        raise ParameterError("device", choice, "NVML finds no visible GPU on this machine; use cpu")
    if gpus:
        allocator_settings()
    return gpus or (ram_device(),)


def beside(ram: Device, gpus: Sequence[Device]) -> tuple[Device, ...]:
    """The GPUs with the size and the free bytes of their machine's RAM."""
    return tuple(replace(gpu, ram_bytes=ram.total_bytes, free_ram_bytes=ram.free_bytes) for gpu in gpus)


def detect_with_idle_cores(choice: DeviceChoice = "auto") -> tuple[Device, ...]:
    """``detect_devices``, with the cores that are idle now; takes ``IDLE_SECONDS``."""
    devices, idle = detect_devices(choice), idle_cores()
    return devices if idle is None else tuple(replace(device, idle_cores=idle // len(devices)) for device in devices)


def detect(choice: DeviceChoice) -> tuple[Device, ...]:
    """The devices of this machine; empty if the choice is "cuda" and there are no GPUs."""
    try:
        return detect_with_idle_cores(choice)
    except InputError:
        if choice == "cuda":
            return ()
        raise


def idle_cores() -> int | None:
    """How many of the CPU cores that this process may use are idle within ``IDLE_SECONDS``; None if unknown."""
    busy = psutil.cpu_percent(IDLE_SECONDS, percpu=True)
    cores = usable_cores()
    if not all(core < len(busy) for core in cores):
        return None  # a container that does not show all cores
    return round(sum(1 - busy[core] / 100 for core in cores))


def usable_cores() -> Collection[int]:
    """The CPU cores that this process may use by its affinity mask."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def torch_has_cuda() -> bool:
    """Whether the installed torch can be a CUDA build. Only its version is read; torch is not imported."""
    return not metadata.version("torch").endswith("+cpu")


def pin(device: Device, beside: Sequence[str] = ()) -> None:
    """Makes this GPU the one that the process sees as ``cuda:0``, alone or with others, by their UUIDs.

    Call it before torch initializes CUDA.
    """
    if device.kind == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join([device.uuid, *beside])


def torch_index(device: Device) -> int | None:
    """The index that torch gives to this GPU, which may differ from NVML's; None if torch does not see it."""
    import torch

    if not (count := torch.cuda.device_count()):
        return None
    torch.cuda.current_device()  # initializes CUDA, and raises what goes wrong there
    # A process with a MIG instance sees no other GPU. torch counts those as well, and raises when asked about them.
    with suppress(RuntimeError, AssertionError):
        for index in range(count):
            if device.uuid.endswith(str(torch.cuda.get_device_properties(index).uuid)):
                return index
    return None


@cache
def initialized_nvml() -> Any:
    """NVML, initialized once: that takes a while, and studies read the memory often.

    Without an NVIDIA driver, ``pynvml.NVMLError`` is raised.
    """
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def driver_version() -> str:
    """The NVIDIA driver's version. Without one, ``pynvml.NVMLError`` is raised."""
    return str(initialized_nvml().nvmlSystemGetDriverVersion())


def cuda_devices() -> tuple[Device, ...]:
    """The GPUs and MIG instances that are visible under ``CUDA_VISIBLE_DEVICES``; empty without an NVIDIA driver.

    Compute instances that share a GPU instance's memory count as one device: the first of them.
    """
    import pynvml

    try:
        number = initialized_nvml().nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return ()
    visible = _visible([nvml_gpu(index) for index in range(number)], os.environ.get("CUDA_VISIBLE_DEVICES"))
    apart = {(device.index, device.gpu_instance): device for device in reversed(visible)}
    visible = [device for device in visible if device in apart.values()]
    cores = max(1, available_cores() // max(1, len(visible)))
    return tuple(_cuda_device(device, cores) for device in visible)


def nvml_gpu(index: int) -> NvmlGpu:
    """NVML's GPU with this ordinal. NVML must be initialized; its errors are raised."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    whole = NvmlDevice(handle, index, str(pynvml.nvmlDeviceGetUUID(handle)))
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return NvmlGpu(whole)
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:  # a GPU or a driver without MIG
        return NvmlGpu(whole)
    instances = []
    for number in range(most):
        with suppress(pynvml.NVMLError):  # there is none with this number, or this process may not use it
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole.handle, number)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            memory, compute = pynvml.nvmlDeviceGetGpuInstanceId(handle), pynvml.nvmlDeviceGetComputeInstanceId(handle)
            alias = f"MIG-{whole.uuid}/{memory}/{compute}"
            instances.append(NvmlDevice(handle, index, uuid, number, memory, alias))
    return NvmlGpu(whole, tuple(instances))


def ram_device() -> Device:
    """This machine's RAM, within the limit of the process's cgroup."""
    return Device("", "cpu", 0, _processor(), *ram_bytes(), available_cores())


def ram_bytes() -> tuple[int, int]:
    """The total and the free bytes of this machine's RAM, within the limit of the process's cgroup."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    limit, used = cgroup_memory()
    if limit is not None and limit < total:
        total, free = limit, min(free, max(0, limit - used))
    return total, free


def cgroup_memory(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> tuple[int | None, int]:
    """The lowest memory limit of this process's cgroups (None without one), and the bytes used under it.

    Reads cgroup v2 (``memory.max``) and v1 (``memory/memory.limit_in_bytes``) from the process's group up to the
    root, since each of them may have a limit. Page cache that the kernel can drop is not counted.
    """
    tightest: tuple[int | None, int] = (None, 0)
    for version, limit_name, used_name, prefix in (
        ("", "memory.max", "memory.current", ""),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        for folder in _group_folders(root / version, version, membership):
            limit = _read(folder / limit_name)
            if limit.isdigit() and (tightest[0] is None or int(limit) < tightest[0]):
                parts = dict(line.split()[:2] for line in _read(folder / "memory.stat").splitlines())
                cache = sum(int(parts.get(f"{prefix}{state}_file", 0)) for state in ("active", "inactive"))
                tightest = int(limit), max(0, int(_read(folder / used_name) or 0) - cache)
    return tightest


def _group_folders(root: Path, controller: str, membership: Path) -> list[Path]:
    """The process's cgroup folder under ``root`` and its parents, innermost first."""
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = root / path.strip("/")
            return [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    return [root]


def available_cores(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> int:
    """The CPU cores that this process may use by its affinity mask and its cgroups' CPU quota; at least 1."""
    number = len(usable_cores())
    quotas = [_read(folder / "cpu.max").partition(" ")[::2] for folder in _group_folders(root, "", membership)]
    for quota, period in [*quotas, (_read(root / "cpu/cpu.cfs_quota_us"), _read(root / "cpu/cpu.cfs_period_us"))]:
        if quota.isdigit() and period.isdigit():
            number = min(number, int(quota) // int(period))
    return max(1, number)


def _processor() -> str:
    """The processor's model if Linux reports it; otherwise its architecture."""
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine()


def _visible(gpus: Sequence[NvmlGpu], variable: str | None) -> list[NvmlDevice]:
    """What ``CUDA_VISIBLE_DEVICES`` names. As in CUDA, the first unknown name ends the list.

    A GPU in MIG mode stands for all its instances. CUDA shows a process one instance (MIG User Guide, "CUDA Device
    Enumeration"; in newer releases one of each GPU instance), the first that it may use. But here each worker is a
    process with an instance of its own.
    """
    if variable is None:
        return [device for gpu in gpus for device in gpu.devices]
    chosen: list[NvmlDevice] = []
    for word in (part.strip() for part in variable.split(",")):
        named = [gpu.devices for gpu in gpus if word == str(gpu.whole.index) or (word and gpu.whole.is_named(word))]
        parts = [device for gpu in gpus for device in gpu.instances or () if word and device.is_named(word)]
        named += [(device,) for device in parts]
        if len(named) != 1 or any(device in chosen for device in named[0]):
            break
        chosen += named[0]
    return chosen


def _cuda_device(listed: NvmlDevice, cores: int) -> Device:
    import pynvml

    memory = pynvml.nvmlDeviceGetMemoryInfo(listed.handle)
    name = str(pynvml.nvmlDeviceGetName(listed.handle))
    device = Device("", "cuda", listed.index, name, int(memory.total), int(memory.free), cores, listed.uuid)
    if listed.instance is None:
        return device
    multiprocessors = 0
    with suppress(pynvml.NVMLError):
        multiprocessors = int(pynvml.nvmlDeviceGetAttributes_v2(listed.handle).multiprocessorCount)
    return replace(device, instance=listed.instance, multiprocessors=multiprocessors)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Target:
    """A real or assumed device, the limit (a safe share, at most the free memory), and notes for the user."""

    device: Device
    limit_bytes: int
    notes: tuple[str, ...] = ()


def detected_target(choice: DeviceChoice, safety_margin: float) -> Target:
    """This machine's device with the smallest limit. A missing GPU raises ``InputError``."""
    devices = detect_devices(choice)
    device = min(devices, key=lambda device: _safe_limit(device, safety_margin))
    limit, notes = _safe_limit(device, safety_margin), []
    if len({device.total_bytes for device in devices}) > 1:
        sizes = ", ".join(f"{other.label} {other.total_bytes / GB:.1f} GB" for other in devices)
        notes.append(f"devices differ ({sizes}): sized for {device.label}, which has the least")
    if limit < int(device.total_bytes * safety_margin):
        notes.append(
            f"{device.label}: others hold some of it: of {device.total_bytes / GB:.2f} GB only "
            f"{device.free_bytes / GB:.2f} GB are free"
        )
    return Target(device, limit, tuple(notes))


def given_target(choice: DeviceChoice, total_gb: float, safety_margin: float) -> Target:
    """An assumed device with this memory: a GPU, or with "cpu" a machine's RAM."""
    total = int(total_gb * GB)
    device = ram_device() if choice == "cpu" else present_or_imagined("cuda")
    return Target(replace(device, total_bytes=total, free_bytes=total), int(total * safety_margin))


def present_or_imagined(choice: DeviceChoice) -> Device:
    """This machine's first device of this kind; a GPU need not exist."""
    try:
        return detect_devices(choice)[0]
    except InputError:
        if choice != "cuda":
            raise
        return imagined_gpu(0)


def imagined_gpu(size_bytes: int, index: int = 0) -> Device:
    """A GPU that need not exist; its machine is assumed to have enough CPU cores."""
    return Device("", "cuda", index, "a GPU", size_bytes, size_bytes, cores=0)


def _safe_limit(device: Device, safety_margin: float) -> int:
    return min(int(device.total_bytes * safety_margin), device.free_bytes)
