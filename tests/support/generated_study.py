"""The folder of a study that nobody ran, of any size, as tuner writes it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from tuner.objective import Objective
from tuner.records.attempts import parse_attempt, to_csv
from tuner.trial import GB

Row = dict[str, Any]
OBJECTIVES = {"toy": Objective("val_loss")}
BEGAN = 1_795_258_564.0  # unix seconds
BUDGET_GB = 14.0
LANES = 6


def write_study(
    folder: Path, trials: int, *, name: str = "width", epochs: int = 12, seeds: int = 1, more: int = 0
) -> list[Row]:
    """A study of so many trials on two GPUs, a few of which fail or are tried again; returns the CSV's rows.

    Args:
        folder: a new one.
        trials: how many; a multiple of ``seeds``.
        name: what the configurations' names begin with.
        epochs: of each trial.
        seeds: that each configuration is trained with.
        more: hyperparameters beside the six, which change nothing.
    """
    folder.mkdir(parents=True)
    draw = random.Random(0)
    free = [[0.0] * LANES, [0.0] * LANES]
    attempts: list[Row] = []
    lines: list[Row] = []
    configs: list[Row] = []
    for number in range(1, trials + 1):
        seed, place = divmod(number - 1, trials // seeds)
        if seed == 0:
            others = {f"config/other_{other:02d}": draw.random() for other in range(more)}
            configs.append({**_config(draw, epochs), **others})
        trial = {
            "trial_id": f"t{number:0{max(3, len(str(trials)))}d}",
            "name": f"{name}-{place + 1}",
            "seed": seed,
            **configs[place],
        }
        tries = (
            ["completed"] if draw.random() > 0.08 else ["out_of_memory", draw.choice(["completed", "out_of_memory"])]
        )
        if draw.random() < 0.03:
            tries = [draw.choice(["failed", "diverged"])]
        ended = 0.0
        for attempt, status in enumerate(tries, 1):
            row = _row({**trial, "attempts": attempt, "status": status}, draw, free, ended)
            ended = row["ended_at"] - BEGAN
            attempts.append(row)
            lines += _lines(row, draw, epochs)
    rows = list({row["trial_id"]: row for row in attempts}.values())
    rows.sort(key=lambda row: str(row["trial_id"]))
    attempts.sort(key=lambda row: float(row["ended_at"]))
    (folder / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in attempts))
    (folder / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "results.csv").write_text(to_csv([parse_attempt(row, "a row") for row in rows]))
    (folder / "study.json").write_text(json.dumps(_study(rows, seeds)))
    return rows


def _config(draw: random.Random, epochs: int) -> Row:
    return {
        "config/hidden_dim": draw.choice([32, 64, 128, 256]),
        "config/num_layers": draw.choice([2, 3, 4]),
        "config/dropout": draw.choice([0.1, 0.3, 0.5]),
        "config/lr": round(10 ** draw.uniform(-4, -1), 6),
        "config/batch_size": draw.choice([512, 1024, 2048]),
        "config/epochs": epochs,
    }


def _loss(config: Row) -> float:
    """Lowest at lr 0.01, width 64 and two layers."""
    off = abs(math.log10(config["config/lr"]) + 2) + 0.3 * abs(math.log2(config["config/hidden_dim"] / 64))
    return 0.85 + 0.05 * off + 0.02 * (config["config/num_layers"] - 2) + 0.01 * config["config/dropout"]


def _row(trial: Row, draw: random.Random, free: list[list[float]], after: float) -> Row:
    """An attempt, on the lane that is free first, and not before ``after``."""
    config = {key: value for key, value in trial.items() if key.startswith("config/")}
    status = trial["status"]
    peak = 0.4 + config["config/hidden_dim"] * config["config/num_layers"] / 900
    reserved = peak * (0.8 if status == "out_of_memory" else draw.uniform(1.02, 1.3))
    seconds = draw.uniform(4, 30)
    device, lane = min(((d, i) for d in range(2) for i in range(LANES)), key=lambda at: free[at[0]][at[1]])
    began = max(free[device][lane], after)
    free[device][lane] = began + seconds + 0.2
    loss = round(_loss(config) + draw.gauss(0, 0.006), 6)
    done = status == "completed"
    return {
        "trial_id": trial["trial_id"],
        "workload": "toy",
        "name": trial["name"],
        "seed": trial["seed"],
        "status": status,
        "attempts": trial["attempts"],
        **({"val_loss": loss, "test_loss": round(loss + 0.01, 6)} if done else {}),
        "epochs": config["config/epochs"] if done else 1,
        "duration_s": round(seconds, 3),
        "device": f"cuda:{device}",
        "gpu_fraction": round(reserved / BUDGET_GB, 6),
        "estimated_memory_gb": round(peak * draw.uniform(0.97, 1.02), 4),
        "peak_memory_gb": round(min(peak, reserved), 4),
        "error": "" if done else "training: CUDA out of memory" if status == "out_of_memory" else "first step: Boom",
        "limit_gb": reserved,
        "lost": "",
        "started_at": round(BEGAN + began, 3),
        "ended_at": round(BEGAN + began + seconds, 3),
        **config,
    }


def _lines(row: Row, draw: random.Random, epochs: int) -> list[Row]:
    last = epochs if row["status"] == "completed" else 1
    end = row.get("val_loss", 1.2)
    step = (row["ended_at"] - row["started_at"]) / (last + 1)
    return [
        {
            "trial_id": row["trial_id"],
            "attempt": row["attempts"],
            "epoch": epoch,
            "at": round(row["started_at"] + step * (epoch + 0.5), 3),
            "metrics": {"val_loss": round(end + 0.4 * math.exp(-epoch / 3) + draw.gauss(0, 0.002), 6)}
            if epoch
            else {},
        }
        for epoch in range(last + 1)
    ]


def _study(rows: list[Row], seeds: int) -> Row:
    device = {"node_id": "", "kind": "cuda", "name": "A generated GPU", "total_bytes": 16 * GB, "free_bytes": 15 * GB}
    return {
        "workload": "toy",
        "metrics": {name: objective.metric for name, objective in OBJECTIVES.items()},
        "seed": 0,
        "seeds": seeds,
        "configurations": [{"name": name} for name in dict.fromkeys(row["name"] for row in rows)],
        "command": "tune --config search.yaml --auto-memory",
        "options": None,
        "data": "generated",
        "settings": {"auto_memory": True},
        "plan": {
            "devices": [{**device, "index": index, "cores": 8, "uuid": "", "host": ""} for index in range(2)],
            "budgets": [int(BUDGET_GB * GB)] * 2,
            "threads": 1,
        },
        "versions": {"python": "3.11", "torch": "2.13.0"},
        "started": "2026-11-21T10:56:04+0000",
    }
