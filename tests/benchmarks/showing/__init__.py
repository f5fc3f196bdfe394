"""Tests of showing results."""
