"""Changes of single values in YAML and TOML files that leave every other byte as it is."""
