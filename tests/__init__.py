"""Tests of gxd_jax: one file a room, and `reference`, the slow NumPy version they compare with."""
