"""Tests of the supervised problems."""
