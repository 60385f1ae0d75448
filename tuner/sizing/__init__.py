"""Fits a single run to its device: batch sizes, accumulation and footprints."""
