"""Finds the largest batch of any torch model from a sample of its data."""
