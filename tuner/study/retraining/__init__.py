"""One configuration of a study again, in this process: what ``tuner train`` does."""
