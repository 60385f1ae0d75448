"""Which trial gets which share of which device, and what follows an attempt: pure decisions."""
