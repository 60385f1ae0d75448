"""The estimators, a file each, which ``tuner.estimation.registry`` finds."""
