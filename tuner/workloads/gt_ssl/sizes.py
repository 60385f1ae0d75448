"""Sizes of GT-SSL's evaluation, known without torch."""

EVALUATION_TREES = 8  # in a batch
EVALUATION_PATHS = 4096  # whose messages are computed at a time: about as many as in a training batch, or fewer
EVALUATION_NEGATIVES = 64
