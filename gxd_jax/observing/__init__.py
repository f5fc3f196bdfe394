"""Observing one batch: loss, gradients, features and sensitivities."""
