"""One configuration of a study again, in this process: what ``tune train`` does."""
