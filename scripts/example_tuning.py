"""Tunes GraphSAGE from Python: a few configurations on generated ratings, as a notebook would do it.

Run it with the project's environment: .venv/bin/python scripts/example_tuning.py [--output DIR]
"""

from __future__ import annotations

import click
import pandas as pd

import tuner
from tuner.datasets.synthetic import synthetic_ratings

CONFIGURATIONS = [
    {"name": "small", "hidden_dim": 32, "num_layers": 2, "epochs": 4},
    {"name": "wide", "hidden_dim": 64, "num_layers": 2, "epochs": 4},
    {"name": "deep", "hidden_dim": 32, "num_layers": 3, "epochs": 4},
]


@click.command()
@click.option("--output", help="The study's folder.  [default: a new one under results/]")
def main(output: str | None) -> None:
    """Tune three configurations and look at the best."""
    data = synthetic_ratings()  # your own: DataFrames with user_id, item_id, rating, and two feature tables
    trainset, testset = (
        pd.DataFrame({"user_id": part.user, "item_id": part.item, "rating": part.rating})
        for part in (data.train, data.test)
    )
    frame = tuner.tune_hyperparameters_parallel(
        trainset,
        testset,
        data.user_features,
        data.item_features,
        configurations=CONFIGURATIONS,
        model_memory_gb=tuner.auto_estimate_memory_from_configs(CONFIGURATIONS, data.num_users, data.num_items),
        gpu_memory_buffer_gb=2.0,
        output=output,
    )
    print(frame[["name", "val_rmse", "test_rmse", "duration_s", "peak_memory_gb"]].to_string(index=False))


if __name__ == "__main__":
    main()
