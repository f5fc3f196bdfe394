"""How `find_units` reads a program: labels of units, a rule for each primitive, and the wiring that follows."""
