"""Traces the allocations of a training step on fake tensors."""
