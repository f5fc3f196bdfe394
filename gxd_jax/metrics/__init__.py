"""Diagnostics of plasticity, as pure functions of features, parameters, gradients or losses.

Give them an explicit, fixed probe set: on the training batch they measure the policy or the stream, not the network.
"""

from gxd_jax.metrics.costs import reset_cost
from gxd_jax.metrics.curvature import hessian_trace, top_eigenvalue
from gxd_jax.metrics.features import (
    approximate_rank,
    dead_units,
    dormant_units,
    effective_rank,
    low_activity_units,
    mean_weight_magnitude,
    saturated_units,
    stable_rank,
)
from gxd_jax.metrics.learning import error_reduction, gradient_norm, nonzero_gradients, plasticity
from gxd_jax.metrics.saturation import saturated_share

__all__ = [
    "approximate_rank",
    "dead_units",
    "dormant_units",
    "effective_rank",
    "error_reduction",
    "gradient_norm",
    "hessian_trace",
    "low_activity_units",
    "mean_weight_magnitude",
    "nonzero_gradients",
    "plasticity",
    "reset_cost",
    "saturated_share",
    "saturated_units",
    "stable_rank",
    "top_eigenvalue",
]
