"""Where trials run: Ray's workers, or this process."""
