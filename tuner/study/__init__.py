"""One study, from its options to its results."""
