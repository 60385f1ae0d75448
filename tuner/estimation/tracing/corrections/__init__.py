"""Corrections for operators that allocate differently on a device than on fake tensors."""
