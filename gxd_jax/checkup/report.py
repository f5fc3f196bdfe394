"""The report of a check-up: a pytree of arrays, to print, to plot or to log."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.core import Tracer

from gxd_jax.checkup import figure, text
from gxd_jax.checkup.layer_report import LayerReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """The result of `check_up`: a pytree of arrays, `report["Dense_0"].dead`, and a text, `print(report)`.

    The text gives the number of units in each state and means over units: "saturation" of `saturated_share`, "mean |h|"
    of `activity`; "w in / initial" is `growth`. For several networks (vmap) it shows means over networks.

    Attributes:
        layers: One report a layer, in the order of the units.
        names: Names of the layers. Static.
    """

    layers: tuple[LayerReport, ...]
    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})

    def __getitem__(self, name: str) -> LayerReport:
        return dict(zip(self.names, self.layers, strict=True))[name]

    def __str__(self) -> str:
        if any(isinstance(leaf, (Tracer, jax.ShapeDtypeStruct)) for leaf in jax.tree.leaves(self)):
            return repr(self)
        return text.table(self._by_name())

    def figure(self) -> Figure:
        """Plots one row of panels a layer, of one network; the darker a unit, the graver its state.

        Returns:
            A matplotlib figure, `report.figure().savefig("check_up.png")`.

        Raises:
            ImportError: If matplotlib, which `gxd_jax` does not require, is not installed.
            ValueError: If the report is one of several networks.
        """
        return figure.figure(self._by_name())

    def _by_name(self) -> dict[str, LayerReport]:
        return dict(zip(self.names, jax.tree.map(np.asarray, self.layers), strict=True))
