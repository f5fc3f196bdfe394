"""The other remedies against loss of plasticity, one file each: optax transformations, and pure functions."""

from gxd_jax.methods.full_reset import full_reset
from gxd_jax.methods.l2_init import l2_init
from gxd_jax.methods.plasticity_injection import Injection, injected, plasticity_injection
from gxd_jax.methods.redo import redo
from gxd_jax.methods.regrama import regrama
from gxd_jax.methods.selective_weight_reinitialization import selective_weight_reinitialization
from gxd_jax.methods.self_normalized_resets import self_normalized_resets
from gxd_jax.methods.shrink_and_perturb import shrink_and_perturb
from gxd_jax.methods.spectral_regularization import spectral_regularization
from gxd_jax.methods.utility_gated_noise import utility_gated_noise
from gxd_jax.methods.weight_clipping import weight_clipping

__all__ = [
    "Injection",
    "full_reset",
    "injected",
    "l2_init",
    "plasticity_injection",
    "redo",
    "regrama",
    "selective_weight_reinitialization",
    "self_normalized_resets",
    "shrink_and_perturb",
    "spectral_regularization",
    "utility_gated_noise",
    "weight_clipping",
]
