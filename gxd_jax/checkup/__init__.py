"""A check-up of a network's plasticity: the report, its text and its figure."""
