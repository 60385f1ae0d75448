"""Pure decisions: where a trial runs, its memory share, and whether it is retried."""
