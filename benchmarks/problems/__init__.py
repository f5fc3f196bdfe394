"""The supervised problems: one file each, which ends with its `Problem`."""
