"""The estimators, a file each; ``tuner.estimation.registry`` lists them."""
