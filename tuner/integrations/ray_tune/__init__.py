"""A trainable of Ray Tune's, made aware of memory: Tune's own loop runs it."""
