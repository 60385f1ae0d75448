"""The training loop with its optimizer, checkpoints, offloading and recomputation."""
