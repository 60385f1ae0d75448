"""Search spaces, searchers and schedulers, independent of a training loop."""
