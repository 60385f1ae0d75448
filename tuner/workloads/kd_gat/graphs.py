"""Which graphs of a data set a stage uses, and which sizes a model may have; without torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can import CanData
from tuner.errors import InputError

Index = NDArray[np.int64]


def usable(data: CanData, graphs: Index, *, stage: str, held_out: str = "") -> Index:
    """The given graphs that can be used for training or validation, in their order.

    An autoencoder uses only normal graphs. No model uses the kind of attack that is ``held_out``.
    """
    keep = data.label[graphs] == 0 if stage == "autoencoder" else np.ones(len(graphs), bool)
    if held_out:
        keep &= data.attack[graphs] != data.attacks.index(held_out)
    kept: Index = graphs[keep]
    return kept


def graphs_of(data: CanData, split: str, *, stage: str, held_out: str = "") -> Index:
    """The graphs of a split that a stage uses.

    Of the test graphs these are the normal ones, and for a classifier all attacks, or only the kind that is held out.
    """
    if split != "test":
        return usable(data, getattr(data, split), stage=stage, held_out=held_out)
    if not held_out or stage == "autoencoder":
        return usable(data, data.test, stage=stage)
    kind = data.attack[data.test]
    chosen: Index = data.test[(kind == 0) | (kind == data.attacks.index(held_out))]
    return chosen


def check_sizes(hidden_channels: int, latent_channels: int, heads: int) -> None:
    """Raises ``InputError`` if heads do not divide the channels of an autoencoder."""
    if hidden_channels % (2 * heads) or latent_channels % heads:
        raise InputError(
            f"hidden_channels {hidden_channels}, latent_channels {latent_channels}, heads {heads}: half of "
            "hidden_channels, and latent_channels, must be multiples of heads"
        )
