"""What a trial will need: configuration → ``MemoryEstimate``."""
