"""The one training loop, and what serves it: optimizers, checkpoints, offloading, recomputation."""
