"""The properties of GPU models that decide how much memory kernels take beside the tensors."""

import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata

from tuner.trial import MB, Device

# The default workspace of a cuBLAS handle, ``:4096:2:16:8`` (``parseChosenWorkspaceSize`` in CublasHandlePool.cpp).
CUBLAS_WORKSPACE_BYTES = (2 * 4096 + 8 * 16) * 1024
CUBLAS_HOPPER_WORKSPACE_BYTES = 32 * MB


@dataclass(frozen=True)
class CardProperties:
    """A GPU's model, by the properties that PyTorch's kernels ask for (``cudaDeviceProp``)."""

    multiprocessors: int  # multiProcessorCount
    threads: int  # maxThreadsPerMultiProcessor
    capability: tuple[int, int]  # major, minor

    @property
    def cublas_workspace_bytes(self) -> int:
        """The default workspace of a cuBLAS handle: larger for Hopper, and since torch 2.12 for Blackwell."""
        large = self.capability == (9, 0) or (self.capability >= (9, 0) and torch_version() >= (2, 12))
        return CUBLAS_HOPPER_WORKSPACE_BYTES if large else CUBLAS_WORKSPACE_BYTES


# By the words that identify a model in its name. From NVIDIA's architecture papers: the number of streaming
# multiprocessors, and by compute capability their threads (table "Technical Specifications per Compute Capability" of
# the CUDA programming guide).
_MULTIPROCESSORS: dict[tuple[int, int], dict[str, int]] = {
    (6, 0): {"P100": 56},
    (6, 1): {"GTX 1080 Ti": 28, "GTX 1080": 20, "GTX 1070": 15, "GTX 1060": 10, "P40": 30, "P4": 20},
    (7, 0): {"V100": 80, "TITAN V": 80},
    (7, 2): {"Xavier": 8},
    (7, 5): {
        **{"T4": 40, "T4G": 40, "TITAN RTX": 72, "RTX 8000": 72, "RTX 6000": 72, "RTX 5000": 48, "RTX 4000": 36},
        **{"RTX 2080 Ti": 68, "RTX 2080 SUPER": 48, "RTX 2080": 46, "RTX 2070 SUPER": 40, "RTX 2070": 36},
        **{"RTX 2060 SUPER": 34, "RTX 2060": 30, "GTX 1660 Ti": 24, "GTX 1660 SUPER": 22, "GTX 1660": 22},
    },
    (8, 0): {"A100": 108, "A800": 108, "A30": 56},
    (8, 6): {
        **{"A40": 84, "A10": 72, "A10G": 80, "A16": 10, "A2": 10, "A6000": 84, "A5500": 80, "A5000": 64, "A4500": 56},
        **{"A4000": 48, "A2000": 26, "RTX 3090 Ti": 84, "RTX 3090": 82, "RTX 3080 Ti": 80, "RTX 3080": 70},
        **{"RTX 3070 Ti": 48, "RTX 3070": 46, "RTX 3060 Ti": 38, "RTX 3060": 28, "RTX 3050": 20},
        **{"RTX 3060 Laptop": 30},
    },
    (8, 7): {"Orin": 16},
    (8, 9): {
        **{"L4": 58, "L20": 92, "L40": 142, "L40S": 142, "RTX 6000 Ada": 142, "RTX 5000 Ada": 100},
        **{"RTX 4500 Ada": 60, "RTX 4000 Ada": 48, "RTX 2000 Ada": 22, "RTX 4090": 128, "RTX 4080 SUPER": 80},
        **{"RTX 4080": 76, "RTX 4070 Ti SUPER": 66, "RTX 4070 Ti": 60, "RTX 4070 SUPER": 56, "RTX 4070": 46},
        **{"RTX 4060 Ti": 34, "RTX 4060": 24, "RTX 4000 SFF Ada": 48},
    },
    (9, 0): {"H100": 132, "H100 PCIe": 114, "H200": 132, "H800": 132, "H20": 78, "GH200": 132},
    (10, 0): {"B200": 148, "GB200": 152},
    (10, 3): {"B300": 160, "GB300": 160},
    (11, 0): {"Thor": 20},
    (12, 0): {
        **{"RTX PRO 6000": 188, "RTX PRO 5000": 110, "RTX PRO 4500": 82, "RTX PRO 4000": 70},
        **{"RTX 5090": 170, "RTX 5080": 84, "RTX 5070 Ti": 70, "RTX 5070": 48, "RTX 5060 Ti": 36, "RTX 5060": 30},
        **{"RTX 5050": 20},
    },
    (12, 1): {"GB10": 48},
}
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (11, 0): 1536, (12, 0): 1536, (12, 1): 1536}
CARDS = {
    name: CardProperties(multiprocessors, _THREADS.get(capability, 2048), capability)
    for capability, models in _MULTIPROCESSORS.items()
    for name, multiprocessors in models.items()
}
LARGEST = CardProperties(
    max(card.multiprocessors for card in CARDS.values()),
    max(card.threads for card in CARDS.values()),
    max(card.capability for card in CARDS.values()),
)


@cache
def torch_version() -> tuple[int, int]:
    """The major and minor version of the installed torch, without importing it."""
    major, minor, *_ = metadata.version("torch").split(".")
    return int(major), int(minor)


def find_card(name: str) -> CardProperties:
    """The card of a device's name as NVML and torch give it, such as ``NVIDIA A100-SXM4-80GB``.

    An unknown card counts as the largest, so estimates for it are rather too large. A slice of a card, or a laptop's
    card, has the name of the whole card and counts as that.
    """
    words = f" {re.sub(r'[^A-Za-z0-9]+', ' ', name.upper())} "
    names = [key for key in CARDS if f" {key.upper()} " in words]
    return CARDS[max(names, key=len)] if names else LARGEST


def card_of(device: Device) -> CardProperties | None:
    """The card of a GPU; None for the CPU.

    A MIG instance has as many multiprocessors as NVML says. Its name does not tell: on an H100, 1g.10gb has 16 of
    them, and 1g.20gb 26 (``nvidia-smi mig -lgip``).
    """
    if device.kind != "cuda":
        return None
    card = find_card(device.name)
    return replace(card, multiprocessors=device.multiprocessors) if device.multiprocessors else card


def cublas_workspace_bytes(device: Device) -> int:
    """The bytes of one cuBLAS workspace on this device; 0 on the CPU."""
    card = card_of(device)
    return card.cublas_workspace_bytes if card else 0
