"""Tests of the control problems."""
