from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from tests.support.fake_nvml import FakeNvml
from tuner.errors import InputError
from tuner.estimation.cards import card_of
from tuner.execution.cluster import _instances
from tuner.machine import holders
from tuner.machine.devices import (
    NvmlDevice,
    NvmlGpu,
    _visible,
    available_cores,
    cgroup_memory,
    cuda_devices,
    detect_devices,
    detect_with_idle_cores,
)
from tuner.machine.devices import idle_cores as measured  # tests replace that one
from tuner.trial import Device


def write(root: Path, **files: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name.replace("__", ".")).write_text(text)


def test_ram_is_a_device_with_this_machines_cores() -> None:
    (device,) = detect_devices("cpu")
    assert (device.kind, device.label, device.cores) == ("cpu", "cpu", available_cores())
    assert 0 < device.free_bytes <= device.total_bytes


def test_cores_that_others_keep_busy_are_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2, 3}, raising=False)
    monkeypatch.setattr("psutil.cpu_percent", lambda *_, percpu: [0.0, 0.0, 97.0, 6.0])
    assert measured() == 2
    monkeypatch.setattr("psutil.cpu_percent", lambda *_, percpu: [0.0, 0.0])
    assert measured() is None, "a container does not show every core"


def test_gpus_share_the_idle_cores(monkeypatch: pytest.MonkeyPatch, gpu_16gb: Device) -> None:
    monkeypatch.setattr("tuner.machine.devices.detect_devices", lambda choice: (gpu_16gb, gpu_16gb))
    assert [device.free_cores for device in detect_with_idle_cores()] == [16, 16]
    monkeypatch.setattr("tuner.machine.devices.idle_cores", lambda: 5)
    assert [device.free_cores for device in detect_with_idle_cores()] == [2, 2]


def test_asking_for_a_gpu_where_none_is_visible_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("tuner.machine.devices.torch_has_cuda", lambda: True)
    with pytest.raises(InputError, match="no visible GPU"):
        detect_devices("cuda")


def test_a_torch_for_the_cpu_uses_no_gpu(monkeypatch: pytest.MonkeyPatch, gpu_16gb: Device) -> None:
    monkeypatch.setattr("tuner.machine.devices.torch_has_cuda", lambda: False)
    monkeypatch.setattr("tuner.machine.devices.cuda_devices", lambda: (gpu_16gb,))
    assert detect_devices("auto")[0].kind == "cpu"
    with pytest.raises(InputError, match="a build for the CPU"):
        detect_devices("cuda")


TWO = [(1, 0), (2, 0)]


def test_mig_instances_are_devices_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml({"GPU-aa": TWO, "GPU-bb": None, "GPU-cc": []}).install(monkeypatch)
    devices = cuda_devices()
    assert [
        (device.label, device.uuid, device.total_bytes, device.free_bytes, device.multiprocessors)
        for device in devices
    ] == [
        ("cuda:0:0", "MIG-aa0", 10, 9, 16),
        ("cuda:0:1", "MIG-aa1", 20, 19, 16),
        ("cuda:1", "GPU-bb", 80, 79, 0),
    ], "and a GPU in MIG mode without an instance is none"
    assert [card and card.multiprocessors for card in map(card_of, devices)] == [16, 16, 132]


@pytest.mark.parametrize(
    ("variable", "visible"),
    [
        ("MIG-aa1", ["MIG-aa1"]),
        ("MIG-aa1,MIG-aa0", ["MIG-aa1", "MIG-aa0"]),
        ("MIG-b", ["MIG-bb0"]),
        ("MIG-aa", []),  # begins two names
        ("MIG-GPU-aa/2/0", ["MIG-aa1"]),
        ("0", ["MIG-aa0", "MIG-aa1"]),
        ("GPU-b,0", ["MIG-bb0", "MIG-aa0", "MIG-aa1"]),
        ("MIG-aa1,MIG-zz,MIG-aa0", ["MIG-aa1"]),
        ("MIG-aa0,0", ["MIG-aa0"]),  # named twice
        ("2,1", ["GPU-cc", "MIG-bb0"]),
        ("", []),
    ],
)
def test_mig_instances_are_named_as_to_cuda(
    variable: str, visible: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNvml({"GPU-aa": TWO, "GPU-bb": [(1, 0)], "GPU-cc": None}).install(monkeypatch, variable)
    assert [device.uuid for device in cuda_devices()] == visible


def test_compute_instances_that_share_memory_are_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml({"GPU-aa": [(1, 0), (1, 1), (2, 0)]}).install(monkeypatch)
    assert [device.uuid for device in cuda_devices()] == ["MIG-aa0", "MIG-aa2"]


def test_ray_gets_as_many_names_as_there_are_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml({"GPU-aa": TWO, "GPU-bb": None}).install(monkeypatch, "0,1")
    devices = cuda_devices()
    assert _instances(devices) == {"CUDA_VISIBLE_DEVICES": "MIG-aa0,MIG-aa1,GPU-bb"}
    assert _instances(devices[2:]) == {}


def test_a_handle_that_is_refused_leaves_the_memory_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: str) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    FakeNvml({"GPU-aa": TWO}).install(monkeypatch)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", refused)
    monkeypatch.setattr(holders, "initialized_nvml", lambda: pynvml)
    device = cuda_devices()[0]
    assert holders.memory_now(device, [{1}]) == holders.Memory(10, 9, None)
    assert holders.holders(device, (), 3) == []


def test_a_driver_without_mig_has_whole_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    nvml = FakeNvml({"GPU-aa": None})
    nvml.install(monkeypatch)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", missing)
    assert [device.label for device in cuda_devices()] == ["cuda:0"]


def test_the_tightest_cgroup_limit_above_the_process_counts(tmp_path: Path) -> None:
    membership = tmp_path / "membership"
    membership.write_text("0::/job/step\n")
    root = tmp_path / "cgroup"
    write(
        root / "job",
        memory__max="8000\n",
        memory__current="3000\n",
        memory__stat="anon 1\ninactive_file 200\nactive_file 300\n",
    )
    write(root / "job" / "step", memory__max="max\n", memory__current="10\n")
    assert cgroup_memory(root, membership) == (8000, 2500)


def test_the_older_cgroup_version_is_read_too(tmp_path: Path) -> None:
    write(tmp_path / "memory", **{"memory__limit_in_bytes": "900", "memory__usage_in_bytes": "100"})
    assert cgroup_memory(tmp_path, tmp_path / "none") == (900, 100)


def test_no_limit_is_none(tmp_path: Path) -> None:
    assert cgroup_memory(tmp_path, tmp_path / "none") == (None, 0)


def test_a_cpu_quota_limits_the_cores(tmp_path: Path) -> None:
    write(tmp_path, cpu__max="150000 100000")
    assert available_cores(tmp_path, tmp_path / "none") == 1


@pytest.mark.parametrize(
    ("variable", "visible"),
    [(None, [0, 1]), ("", []), ("1", [1]), ("1,0", [1, 0]), ("GPU-b", [1]), ("0,5,1", [0]), ("GPU-", [])],
)
def test_visible_gpus_follow_cudas_own_rules(variable: str | None, visible: list[int]) -> None:
    gpus = [NvmlGpu(NvmlDevice(None, index, uuid)) for index, uuid in enumerate(("GPU-aa", "GPU-bb"))]
    assert [device.index for device in _visible(gpus, variable)] == visible


@pytest.mark.gpu
def test_a_gpu_is_seen_with_its_memory() -> None:
    try:
        device = detect_devices("cuda")[0]
    except InputError as error:
        pytest.skip(f"no GPU on this machine: {error}")
    assert device.total_bytes > device.free_bytes > 0
