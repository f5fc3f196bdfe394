"""Showing results: the summary, tables for the terminal and for the READMEs, figures."""
