"""The emulated card itself: what PyTorch, CUDA's variables and NVML say of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulated_cuda.cards import on_cards, printed_on_cards

pytestmark = pytest.mark.emulated

# CUDA reads its variables at its first use, and to load torch takes two seconds: a process forks in between.
FORKS = """
import os, sys, torch
for program, variables in {cases}:
    child = os.fork()
    if not child:
        os.environ |= variables
        exec(program)
        sys.stdout.flush()
        os._exit(0)
    print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
FIGURES = """
for n in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(n)
    sms = f"{p.multi_processor_count} {p.max_threads_per_multi_processor}"
    print(p.name, sms, f"{p.major}.{p.minor}", p.total_memory >> 20)
"""
KILLED = """
import signal, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetMemoryInfo(card).used >> 20)
kept = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
users = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
print(pynvml.nvmlDeviceGetMemoryInfo(card).used >> 20, [user.pid == os.getpid() for user in users], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
FULL = """
def takes(mib):
    try:
        return torch.empty(mib << 20, dtype=torch.uint8, device="cuda").numel() >> 20
    except torch.OutOfMemoryError:
        return "out of memory"
print(takes(800), takes(600))
torch.cuda.empty_cache()
torch.cuda.set_per_process_memory_fraction(0.5)
print(takes(600), takes(400))
"""
THREE = {"EMULATED_GPUS": "1000,2000,3000"}
CASES = {
    "models": (FIGURES, {"EMULATED_GPU_NAME": "T4,A10,H100,B200,RTX5090,Orin", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    "by speed": (FIGURES, {**THREE, "EMULATED_GPU_NAME": "T4,L4,L40S"}),
    "by number": (FIGURES, {**THREE, "CUDA_VISIBLE_DEVICES": "1"}),
    "by uuid": (FIGURES, {**THREE, "CUDA_VISIBLE_DEVICES": "GPU-3,GPU-1"}),
    "unknown": (FIGURES, {**THREE, "CUDA_VISIBLE_DEVICES": "2,7,0"}),
    "twice": (FIGURES, {**THREE, "CUDA_VISIBLE_DEVICES": "0,0"}),
    "no model": (FIGURES, {"EMULATED_GPU_NAME": "H1000"}),
    "no size": (FIGURES, {"EMULATED_GPUS": "24GB"}),
    "killed": (KILLED, {"EMULATED_CONTEXT_MB": "200"}),
    "after a kill": (KILLED, {"EMULATED_CONTEXT_MB": "200"}),
    "full": (FULL, {"EMULATED_GPUS": "1000", "EMULATED_CONTEXT_MB": "300"}),
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The lines of each case, and how its process ended if not with 0."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS.format(cases=[*CASES.values()])],
        env=on_cards(tmp_path_factory.mktemp("cards") / "cards"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    runs: list[list[str]] = [[]]
    for line in done.stdout.splitlines():
        if line != "exit 0":
            runs[-1].append(line)
        if line.startswith("exit "):
            runs.append([])
    return dict(zip(CASES, runs[:-1], strict=True))


def test_a_card_has_its_models_figures(printed: dict[str, list[str]]) -> None:
    assert printed["models"] == [
        "Tesla T4 40 1024 7.5 15360",
        "NVIDIA A10 72 1536 8.6 23028",
        "NVIDIA H100 80GB HBM3 132 2048 9.0 81559",
        "NVIDIA B200 148 2048 10.0 183359",
        "NVIDIA GeForce RTX 5090 170 1536 12.0 32607",
        "Orin 16 1536 8.7 62841",
    ]


@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        ("by speed", ["3000", "2000", "1000"]),
        ("by number", ["2000"]),
        ("by uuid", ["3000", "1000"]),
        ("unknown", ["3000"]),
        ("twice", []),
    ],
)
def test_cards_are_seen_in_the_order_in_which_cuda_sees_them(
    printed: dict[str, list[str]], case: str, sizes: list[str]
) -> None:
    assert [line.split()[-1] for line in printed[case]] == sizes


def test_a_wrong_setting_gives_no_card(printed: dict[str, list[str]]) -> None:
    unknown = "error: EMULATED_GPU_NAME=H1000: not a card of tests/emulated_cuda/card/cards.h"
    assert printed["no model"] == [unknown, "exit 2"]
    assert printed["no size"] == ["error: EMULATED_GPUS=24GB: sizes in MiB with commas, as in 24576,24576", "exit 2"]


def test_what_a_killed_process_held_is_free(printed: dict[str, list[str]]) -> None:
    assert printed["killed"] == printed["after a kill"] == ["0", "500 [True]", "exit -9"]


def test_a_full_card_and_a_fraction_both_end_in_out_of_memory(printed: dict[str, list[str]]) -> None:
    assert printed["full"] == ["out of memory 600", "out of memory 400"]


COUNTED = """
import torch
from tuner.execution.child_main import can_fork
from tuner.execution.preload_main import keep_configuration

text = torch.__config__.show
keep_configuration()
import torch_geometric
print(can_fork(cuda=True))
print(torch.__config__.show() == text(), torch.cuda._is_in_bad_fork())
print(can_fork(cuda=True), can_fork(cuda=False))
"""


def test_a_process_that_has_pyg_can_fork_for_a_gpu_until_cuda_has_counted_them(tmp_path: Path) -> None:
    assert printed_on_cards(tmp_path, "-c", COUNTED).splitlines() == ["True", "True False", "False True"]
