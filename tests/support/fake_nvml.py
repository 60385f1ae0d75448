"""An NVML without a driver, for unit tests. Memory is in a few bytes."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pynvml
import pytest


@dataclass
class FakeNvml:
    """GPUs by UUID, with (GPU instance, compute instance) of each MIG device; None for one not in MIG mode."""

    gpus: dict[str, list[tuple[int, int]] | None]
    nvmlInit = nvmlShutdown = staticmethod(lambda: None)

    def install(self, monkeypatch: pytest.MonkeyPatch, variable: str | None = None) -> None:
        """Has pynvml ask this one, under ``CUDA_VISIBLE_DEVICES``."""
        for name in dir(self):
            if name.startswith("nvml"):
                monkeypatch.setattr(pynvml, name, getattr(self, name))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if variable is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[str, int]:
        return list(self.gpus)[index], -1

    def nvmlDeviceGetUUID(self, handle: tuple[str, int]) -> str:
        return handle[0] if handle[1] < 0 else f"MIG-{handle[0][4:]}{handle[1]}"

    def nvmlDeviceGetMigMode(self, handle: tuple[str, int]) -> list[int]:
        if self.gpus[handle[0]] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: tuple[str, int]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: tuple[str, int], number: int) -> tuple[str, int]:
        if number >= len(self.gpus[handle[0]] or ()):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return handle[0], number

    def nvmlDeviceGetGpuInstanceId(self, handle: tuple[str, int]) -> int:
        return (self.gpus[handle[0]] or [])[handle[1]][0]

    def nvmlDeviceGetComputeInstanceId(self, handle: tuple[str, int]) -> int:
        return (self.gpus[handle[0]] or [])[handle[1]][1]

    def nvmlDeviceGetMemoryInfo(self, handle: tuple[str, int]) -> SimpleNamespace:
        if handle[1] < 0 and self.gpus[handle[0]] is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        size = 80 if handle[1] < 0 else 10 * (handle[1] + 1)
        return SimpleNamespace(total=size, free=size - 1, used=1)

    def nvmlDeviceGetName(self, handle: tuple[str, int]) -> str:
        return "NVIDIA H100 80GB HBM3" + (" MIG 1g.10gb" if handle[1] >= 0 else "")

    def nvmlDeviceGetAttributes_v2(self, handle: tuple[str, int]) -> SimpleNamespace:
        return SimpleNamespace(multiprocessorCount=16)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: tuple[str, int]) -> list[object]:
        return []

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"
