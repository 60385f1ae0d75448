"""The emulated card itself: what PyTorch, CUDA's variables and NVML say of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.emulated_cuda.cards import on_cards

pytestmark = pytest.mark.emulated

# To load torch takes two seconds, and CUDA reads its variables at its first use: a process forks before that.
FORKS = """
import os, sys, torch
for variables in {variables}:
    child = os.fork()
    if not child:
        os.environ |= variables
        exec({program!r})
        sys.stdout.flush()
        os._exit(0)
    print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def printed(program: str, *variables: dict[str, str]) -> list[list[str]]:
    """The lines that a program prints with each of these environments, and how it ended if not with 0."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS.format(variables=variables, program=program)],
        env=on_cards(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    runs: list[list[str]] = [[]]
    for line in done.stdout.splitlines():
        if line.startswith("exit "):
            runs[-1] += [line] if line != "exit 0" else []
            runs.append([])
        else:
            runs[-1].append(line)
    return runs[:-1]


FIGURES = """
for n in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(n)
    sms = f"{p.multi_processor_count} {p.max_threads_per_multi_processor}"
    print(p.name, sms, f"{p.major}.{p.minor}", p.total_memory >> 20)
"""


def test_a_card_has_its_models_figures() -> None:
    models = {"EMULATED_GPU_NAME": "T4,A10,H100,B200,RTX5090,Orin", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert printed(FIGURES, models) == [
        [
            "Tesla T4 40 1024 7.5 15360",
            "NVIDIA A10 72 1536 8.6 23028",
            "NVIDIA H100 80GB HBM3 132 2048 9.0 81559",
            "NVIDIA B200 148 2048 10.0 183359",
            "NVIDIA GeForce RTX 5090 170 1536 12.0 32607",
            "Orin 16 1536 8.7 62841",
        ]
    ]


def test_visible_devices_and_their_order_are_cudas() -> None:
    visible = ["1", "GPU-3,GPU-1", "2,7,0", "0,0"]
    cards = {"EMULATED_GPUS": "1000,2000,3000"}
    runs = printed(
        FIGURES,
        *({**cards, "CUDA_VISIBLE_DEVICES": each} for each in visible),
        {**cards, "EMULATED_GPU_NAME": "T4,L4,L40S"},  # the fastest first
    )
    sizes = [[line.split()[-1] for line in run] for run in runs]
    assert sizes == [["2000"], ["3000", "1000"], ["3000"], [], ["3000", "2000", "1000"]]


def test_a_wrong_setting_gives_no_card() -> None:
    name, sizes = printed(FIGURES, {"EMULATED_GPU_NAME": "H1000"}, {"EMULATED_GPUS": "24GB"})
    assert name == ["error: EMULATED_GPU_NAME=H1000: not a card of tests/emulated_cuda/card/cards.h", "exit 2"]
    assert sizes == ["error: EMULATED_GPUS=24GB: sizes in MiB with commas, as in 24576,24576", "exit 2"]


KILLED = """
import signal, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetMemoryInfo(card).used >> 20)
kept = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
users = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
print(pynvml.nvmlDeviceGetMemoryInfo(card).used >> 20, [each.pid == os.getpid() for each in users], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_held_is_free() -> None:
    context = {"EMULATED_CONTEXT_MB": "200"}
    assert printed(KILLED, context, context) == [["0", "500 [True]", "exit -9"]] * 2


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


def test_a_full_card_and_a_fraction_both_end_in_out_of_memory() -> None:
    (lines,) = printed(FULL, {"EMULATED_GPUS": "1000", "EMULATED_CONTEXT_MB": "300"})
    assert lines == ["out of memory 600", "out of memory 400"]
