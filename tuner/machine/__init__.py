"""The memory of a machine: how much there is, how much a process took, and how much it may take."""
