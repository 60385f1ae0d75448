"""``doctor``: what of this machine would stand in a study's way, and how to mend it."""
