"""Data sets: readers of files and tables, and generators of synthetic data."""
