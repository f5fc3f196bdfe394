"""What a hidden unit is: the wiring of a network as data, and finding it."""
