"""The report of a check-up: a pytree of arrays, to print, to draw or to log."""

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
    """What `check_up` found: a pytree of arrays, `report["Dense_0"].dead`, and a text, `print(report)`.

    The text counts the units in each state and gives means over units: "saturation" of `saturated_share`, "mean |h|" of
    `activity`, "w in / initial" is `growth`. Of a report of several networks (vmap) it shows means over them.

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
        """Draws one row of panels a layer, of one network; dark units are worn out.

        Returns:
            A matplotlib figure, `report.figure().savefig("check_up.png")`.

        Raises:
            ImportError: If matplotlib, which `gxd_jax` does not require, is not installed.
            ValueError: If the report is one of several networks.
        """
        return figure.figure(self._by_name())

    def _by_name(self) -> dict[str, LayerReport]:
        return dict(zip(self.names, jax.tree.map(np.asarray, self.layers), strict=True))
