"""Continual backprop and GXD for JAX: networks that keep learning on changing data."""

from gxd_jax import methods, metrics, training, utilities
from gxd_jax.applying import apply_gradients, apply_updates
from gxd_jax.chaining import chain, reset_info
from gxd_jax.checkup.examination import check_up
from gxd_jax.checkup.layer_report import LayerReport
from gxd_jax.checkup.report import Report
from gxd_jax.methods.continual_backprop import ContinualBackpropState, continual_backprop
from gxd_jax.observing import readouts
from gxd_jax.observing.observation import capture, observe
from gxd_jax.observing.sites import tap
from gxd_jax.optimizers import adam, scale_by_adam
from gxd_jax.resets.collections import reset_collection
from gxd_jax.types import Observation, ResetInfo, UnitRecord
from gxd_jax.wiring.discovery.describing import describe
from gxd_jax.wiring.discovery.finding import Units, find_units
from gxd_jax.wiring.discovery.verification import verify_units
from gxd_jax.wiring.layers import ParamAxis, UnitLayer, flatten_index
from gxd_jax.wiring.sequential import sequential_units

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
