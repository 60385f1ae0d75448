"""GraphSAGE on ratings."""
