"""Tests of the experiments, laid out as they are."""
