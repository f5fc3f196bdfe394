"""What a hidden unit is: the wiring of a network as data, and how it is found."""
