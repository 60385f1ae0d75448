"""Fitting a run to a device: batch sizes, accumulation and footprints, for one run that has the device to itself."""
