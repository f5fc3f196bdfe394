"""The other remedies: one file each, and what the resetting ones share."""
