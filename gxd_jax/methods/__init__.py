"""The other remedies against loss of plasticity, one file each, as optax transformations."""

from gxd_jax.methods.redo import redo
from gxd_jax.methods.regrama import regrama
from gxd_jax.methods.selective_weight_reinitialization import selective_weight_reinitialization
from gxd_jax.methods.self_normalized_resets import self_normalized_resets
from gxd_jax.methods.shrink_and_perturb import shrink_and_perturb

__all__ = [
    "redo",
    "regrama",
    "selective_weight_reinitialization",
    "self_normalized_resets",
    "shrink_and_perturb",
]
