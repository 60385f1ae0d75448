"""The ways to estimate: one file each, which ``tuner.estimation.registry`` finds."""
