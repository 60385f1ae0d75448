"""Workloads: the interface of a model with its data and loss, and the built-in ones, a package each."""
