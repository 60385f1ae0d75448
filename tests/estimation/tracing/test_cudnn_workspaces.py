"""What cuDNN's convolutions take, against what they took on an H200 (cuDNN 9.19, torch 2.11, 2026-11-27).

The workspaces are of seventeen models of torchvision and timm and others like them, from which the rules were made.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tuner.estimation.cards import find_card
from tuner.estimation.tracing.corrections.convolutions import backward, forward

TABLE = Path(__file__).resolve().parents[2] / "data/cudnn_workspaces.csv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines()))
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


def expected_bytes(row: dict[str, str]) -> int:
    """The workspace of a row by the rules."""

    def tensor(name: str) -> torch.Tensor:
        made = torch.empty([*map(int, row[name].split())], dtype=getattr(torch, row["type"]), device="meta")
        return made.to(memory_format=LAYOUTS[row["layout"]]) if made.dim() == 4 else made

    card, stride, groups = find_card("NVIDIA H200"), [*map(int, row["stride"].split())], int(row["groups"])
    tensors = tensor("result"), tensor("input"), tensor("weight")
    rest: list[Any] = [None, stride, 0, 1, False, 0, groups]
    wanted = [row["pass"] == "dgrad", row["pass"] == "wgrad", False]
    steps = forward(card, *tensors, *rest) if row["pass"] == "fwd" else backward(card, None, *tensors, *rest, wanted)
    return max(step for step in steps if step is not None)


@pytest.mark.parametrize("of", ["fwd", "dgrad", "wgrad"])
def test_workspaces_are_about_what_an_h200_took(of: str) -> None:
    found = defaultdict(list)
    for row in ROWS:
        if row["pass"] == of and row["layout"] == "contiguous":
            found["real"].append(int(row["bytes"]))
            found["rules"].append(expected_bytes(row))
    assert 1 <= sum(found["rules"]) / sum(found["real"]) < 1.15
    missing = sum(max(0, real - rules) for real, rules in zip(found["real"], found["rules"], strict=True))
    assert missing < 0.13 * sum(found["real"])


def test_channels_last_needs_no_copies() -> None:
    rows = [row for row in ROWS if row["layout"] == "channels last"]
    copied = [row for row in rows if expected_bytes(row) and row["pass"] != "wgrad"]
    assert len(rows) > 50 and not copied
