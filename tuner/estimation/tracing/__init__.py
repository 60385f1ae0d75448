"""A training step followed on tensors without content: what it allocates, when, and for what."""
