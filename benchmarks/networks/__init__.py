"""The networks of the experiments: one file each, pure functions that know nothing of experiments."""
