"""Footprints of models without their code: files of terms, and fits to measured rows."""
