"""Changes of numbers in YAML and TOML files that keep comments, order, quotes and anchors."""
