"""Closed formulas for what our own workloads take: no torch, milliseconds, and on the safe side."""
