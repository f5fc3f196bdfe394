"""Tests of the library, laid out as it is."""
