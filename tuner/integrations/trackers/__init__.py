"""Trackers that a group uses beside tuner: TensorBoard, MLflow and Weights & Biases; a run for each trial."""
