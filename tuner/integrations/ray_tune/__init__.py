"""Makes a trainable of Ray Tune memory-aware; Tune's own loop runs it."""
