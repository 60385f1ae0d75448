"""Sizes of GT-SSL's evaluation, importable without torch."""

EVALUATION_TREES = 8  # the number of trees in a batch
EVALUATION_PATHS = 4096  # the number of paths whose messages are computed at a time
EVALUATION_NEGATIVES = 64
