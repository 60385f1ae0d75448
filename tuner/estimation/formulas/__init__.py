"""Closed formulas for the built-in workloads, which need no torch and overestimate."""
