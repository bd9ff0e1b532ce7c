"""config.json or YAML becomes one frozen, typed, range-checked object."""
