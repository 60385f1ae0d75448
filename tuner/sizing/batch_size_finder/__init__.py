"""The largest batch for any torch model and a sample of its data."""
