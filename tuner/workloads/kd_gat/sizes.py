"""Sizes of KD-GAT that are known without torch."""

from __future__ import annotations

from collections.abc import Mapping

FEATURES = 10  # of a node, as the data have them
ID_CHANNELS = 16  # of the embedding of a CAN ID
PART = 4096  # edges whose messages are there at a time
CHUNK = 500  # graphs that an evaluation, a teacher or a scorer looks at together
# The sizes of a role, where a configuration says 0, by stage.
SIZES: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("autoencoder", "teacher"): {"hidden_channels": 480, "latent_channels": 48, "heads": 4},
    ("autoencoder", "student"): {"hidden_channels": 80, "latent_channels": 16, "heads": 1},
    ("classifier", "teacher"): {"hidden_channels": 48, "num_layers": 3, "heads": 8},
    ("classifier", "student"): {"hidden_channels": 24, "num_layers": 2, "heads": 4},
}
SHARED = ("use_id", "held_out")  # hyperparameters that a teacher and its student have in common
