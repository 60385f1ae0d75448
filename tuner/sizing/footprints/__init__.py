"""Footprints of models that are not at hand: files of terms, and how to fit them to measured rows."""
