"""The CUDA path of what is no study: Ray Tune's own loop, batch sizes, measured steps, another training."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.emulated_cuda.cards import on_cards
from tests.emulated_cuda.studies import Study, run

pytestmark = pytest.mark.emulated
TUNE_CARDS = Path(__file__).with_name("tune_cards.py")  # not imported: it loads Ray Tune


def printed(folder: Path, *command: str, **cards: Any) -> str:
    """What Python prints with these arguments on cards of its own."""
    environment = on_cards(folder / "cards", XDG_CACHE_HOME=str(folder), **cards)
    command = (sys.executable, *command)
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=240).stdout


def test_rays_trials_keep_to_their_card_and_their_share_and_run_again_with_more(tmp_path: Path) -> None:
    # CUDA would count the A100 first and NVML, as Ray does, the T4.
    cards = {"names": ["T4", "A100"], "sizes": [4000, 6000], "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    (last,) = printed(tmp_path, str(TUNE_CARDS), str(tmp_path), **cards).splitlines()[-1:]
    fits, grows = json.loads(last).values()
    assert [fits["attempts"], grows["attempts"]] == [1, 2]
    assert grows["gpu_fraction"] > 1.49 * fits["gpu_fraction"]
    assert 0.5 < fits["peak_memory_gb"] < 0.8 < grows["peak_memory_gb"]
    assert fits["cards"] == grows["cards"] == [0]


BATCH_SIZE = """
import json, torch, tuner
from torch import nn
model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, {outputs}))
found = tuner.compute_batch_size(model, torch.zeros(1, 512), "cuda:1", mode={mode!r}, max_batch_size=1_000_000)
model.to("cuda:1")
optimizer = torch.optim.Adam(model.parameters())
batch = torch.zeros(found.batch_size, 512, device="cuda:1")
for _ in range(2):
    model(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
free, total = torch.cuda.mem_get_info(1)
print(json.dumps([found.batch_size, 1 - free / total, torch.cuda.memory_reserved(0)]))
"""


@pytest.mark.parametrize(
    ("mode", "outputs", "size"),
    [("measured", 512, 3000), ("traced", 512, 3000), ("measured", 10, 24576), ("measured", 4096, 8192)],
)
def test_the_largest_batch_takes_the_share_of_the_card_that_it_should(
    tmp_path: Path, mode: str, outputs: int, size: int
) -> None:
    # With ten outputs the first step's blocks are split by the optimizer's state, and the second takes more.
    # What the reductions of 4,096 stage grows with small batches alone, so that a line through these is too steep.
    cards = {"sizes": [9000, size], "EMULATED_CONTEXT_MB": "742"}
    script = BATCH_SIZE.format(mode=mode, outputs=outputs)
    batch, taken, on_the_other = json.loads(printed(tmp_path, "-c", script, **cards))
    assert batch > 10_000
    assert 0.6 < taken <= 0.71, "0.7 are wanted"
    assert on_the_other == 0


HELD = """
import json, torch, tuner
from torch import nn
mib = torch.cuda.get_device_properties(0).total_memory >> 20
held = torch.empty(mib - 1400 << 20, dtype=torch.uint8, device="cuda")
cached = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
del cached
free = torch.cuda.mem_get_info()[0]
model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 512)).to("cuda")
found = tuner.compute_batch_size(model, torch.zeros(1, 512), "cuda", mode={mode!r}, max_batch_size=1_000_000)
torch.cuda.reset_peak_memory_stats()
optimizer = torch.optim.Adam(model.parameters())
batch = torch.zeros(found.batch_size, 512, device="cuda")
for _ in range(2):
    model(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
taken = torch.cuda.max_memory_reserved() - held.nbytes
print(json.dumps([found.stopped_by, found.batch_size, taken / (free + (200 << 20))]))
print(found)
"""


@pytest.mark.parametrize("mode", ["static", "traced", "measured"])
def test_a_batch_for_a_card_that_is_almost_full_runs(tmp_path: Path, mode: str) -> None:
    figures, told = printed(tmp_path, "-c", HELD.format(mode=mode), sizes=[3000]).splitlines()
    stopped_by, batch, taken = json.loads(figures)
    assert stopped_by == "free memory"
    assert batch > 1000
    assert 0.3 < taken <= 1
    assert "hold the rest" in told


def test_optimized_batches_take_what_was_predicted(tmp_path: Path) -> None:
    command = ("-m", "tuner", "optimize", "--limit", "1", "--auto", "--profile", "--device", "cuda")
    said = printed(tmp_path, *command, sizes=[6000, 4000])
    assert "sized for cuda:1, which has the least" in said
    ((took, predicted),) = re.findall(r"a batch of \d+ took ([\d.]+) GB, ([\d.]+) GB predicted", said)
    assert float(took) == pytest.approx(float(predicted), rel=0.05)


def test_a_measured_step_has_the_cards_own_context(tmp_path: Path) -> None:
    command = ("-m", "tuner", "estimate", "--memory-estimation", "measured", "--limit", "1", "--device", "cuda")
    names, values, *_ = printed(tmp_path, *command, EMULATED_CONTEXT_MB="900").splitlines()
    assert float(values.split()[names.split().index("context")]) == pytest.approx(900 / 1024, abs=0.001)


def test_another_training_is_on_the_card_that_it_names(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    cards = {"names": ["T4", "A100"], "sizes": [6000, 4000]}
    run(study, "--auto-memory", "--limit", "1", "--epochs", "1", "--in-process", **cards)
    log = tmp_path / "again.log"
    again = ("-m", "tuner", "train", "--from", str(study.folder), "--output", str(tmp_path / "again"))
    printed(tmp_path, *again, "--device", "cuda", **cards, EMULATED_CUDA_LOG=str(log))
    (attempt,) = Study(tmp_path / "again").attempts
    assert attempt["device"] == "cuda:0", "the one with the most room, which is CUDA's second"
    assert re.match(r"context \d+ 0\n", log.read_text())
