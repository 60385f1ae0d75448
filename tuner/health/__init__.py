"""``doctor``: what of this machine could hinder a study, and how to fix it."""
