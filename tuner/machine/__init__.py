"""What memory a machine has, what a process took of it, and what it may take."""
