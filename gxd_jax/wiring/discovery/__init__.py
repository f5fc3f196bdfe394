"""How `find_units` reads a program: labels, rules, and what the labels say about parameters."""
