"""KD-GAT: knowledge distillation of graph attention networks on CAN buses; here are its sizes."""

from collections.abc import Mapping

CHUNK = 500  # the number of graphs in a batch of an evaluation, a teacher or a scorer
# The sizes by stage and role, for values of 0 in a configuration.
SIZES: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("autoencoder", "teacher"): {"hidden_channels": 480, "latent_channels": 48, "heads": 4},
    ("autoencoder", "student"): {"hidden_channels": 80, "latent_channels": 16, "heads": 1},
    ("classifier", "teacher"): {"hidden_channels": 48, "num_layers": 3, "heads": 8},
    ("classifier", "student"): {"hidden_channels": 24, "num_layers": 2, "heads": 4},
}
SHARED = ("use_id", "held_out")  # hyperparameters that a teacher and its student have in common
