"""The public functions: each command of the command line is one of these, with the same parameters."""
