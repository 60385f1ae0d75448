"""What to try next, and what to stop: spaces, searchers and schedulers, without anybody's loop."""
