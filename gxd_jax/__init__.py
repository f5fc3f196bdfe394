"""Continual backprop and GXD for JAX: networks that keep learning on changing data."""

from gxd_jax import methods, metrics, readouts, training, utilities
from gxd_jax.applying import apply_gradients, apply_updates
from gxd_jax.chaining import chain, reset_info
from gxd_jax.checkup import LayerReport, Report, check_up
from gxd_jax.discover import Units, describe, find_units
from gxd_jax.discovery.verification import verify_units
from gxd_jax.observation import capture, observe, tap
from gxd_jax.optimizers import adam, scale_by_adam
from gxd_jax.reset import reset_collection
from gxd_jax.transform import ContinualBackpropState, continual_backprop
from gxd_jax.types import Observation, ResetInfo, UnitRecord
from gxd_jax.units import ParamAxis, UnitLayer, flatten_index, sequential_units

__version__ = "0.1.0"

__all__ = [
    "ContinualBackpropState",
    "LayerReport",
    "Observation",
    "ParamAxis",
    "Report",
    "ResetInfo",
    "UnitLayer",
    "UnitRecord",
    "Units",
    "adam",
    "apply_gradients",
    "apply_updates",
    "capture",
    "chain",
    "check_up",
    "continual_backprop",
    "describe",
    "find_units",
    "flatten_index",
    "methods",
    "metrics",
    "observe",
    "readouts",
    "reset_collection",
    "reset_info",
    "scale_by_adam",
    "sequential_units",
    "tap",
    "training",
    "utilities",
    "verify_units",
]
