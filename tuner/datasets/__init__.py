"""The data of trials: readers of files and tables, and generators of data of the same shape."""
