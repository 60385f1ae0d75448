"""What joins tuner to other tools: Ray Tune and experiment trackers."""
