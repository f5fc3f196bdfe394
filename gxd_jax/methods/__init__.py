"""The other remedies against loss of plasticity, one file each, as optax transformations."""

from gxd_jax.methods.shrink_and_perturb import shrink_and_perturb

__all__ = ["shrink_and_perturb"]
