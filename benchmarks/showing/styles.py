"""How every method is drawn: one colour and one dash in all figures, and how a figure becomes files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

from benchmarks.running.folder import write_file

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the choice of Agg, which needs no display

DPI = 150
FONTS = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


class Style(NamedTuple):
    """How a method is drawn.

    Attributes:
        colour: Its colour.
        dash: Matplotlib's style of its lines.
    """

    colour: str
    dash: str = "-"


# Families have the hues of Okabe and Ito, which the colour-blind tell apart; within one, lightness and dash differ.
STYLES: dict[str, Style] = {
    "backprop": Style("#000000"),
    "linear": Style("#999999", ":"),
    "dropout": Style("#777777", "--"),
    "layer_norm": Style("#777777"),
    "batch_norm": Style("#aaaaaa", "--"),
    "head_reset": Style("#aaaaaa", "-."),
    "l2": Style("#009e73"),
    "shrink_and_perturb": Style("#005a41", "--"),
    "l2_init": Style("#4dc3a1", "-."),
    "spectral_regularization": Style("#8c9a00", "--"),
    "weight_clipping": Style("#c8b900", ":"),
    "utility_gated_noise": Style("#5e6600", "-."),
    "redo": Style("#e69f00"),
    "regrama": Style("#8a5f00", "--"),
    "self_normalized_resets": Style("#f2c35c", "-."),
    "selective_weight_reinitialization": Style("#b07d2b", ":"),
    "cbp_contribution": Style("#0072b2"),
    "cbp_mean_corrected_contribution": Style("#003f66", "--"),
    "cbp_adaptable_contribution": Style("#56b4e9"),
    "cbp_adaptation": Style("#56b4e9", "--"),
    "cbp_weight": Style("#9dbfe0", ":"),
    "cbp_activation": Style("#2f5d9b", ":"),
    "cbp_gradient": Style("#6a6acd", "--"),
    "cbp_random": Style("#cc79a7", ":"),
    "gxd": Style("#d55e00"),
    "gxd_exact": Style("#8f3f00", "--"),
    "gxd_predicted": Style("#f09a5b", "-."),
    "gxd_target": Style("#f09a5b", ":"),
    "gxd_fisher": Style("#b3001b", "--"),
    "gxd_loss": Style("#b3001b", "-."),
    "gxd_adaptation": Style("#7b2d8b"),
    "gxd_adaptation_rank": Style("#7b2d8b", "--"),
    "fresh": Style("#777777"),
    "ppo": Style("#000000"),
    "ppo_betas": Style("#000000", "--"),
    "ppo_l2": Style("#009e73"),
    "cbp": Style("#0072b2"),
    "cbp_l2": Style("#0072b2", "--"),
    "gxd_l2": Style("#d55e00", "--"),
    "gxd_adaptation_l2": Style("#7b2d8b"),
    "redo_l2": Style("#e69f00", "--"),
    "random": Style("#cc79a7", ":"),
}


def save_figure(figure: plt.Figure, path: Path) -> None:
    """Writes a figure as PNG and SVG, and closes it; equal figures give equal files.

    Args:
        figure: The figure.
        path: The files' path, without the ending.
    """
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        # No date, and ids that depend on the drawing only.
        with mpl.rc_context({"svg.hashsalt": path.name}):
            figure.savefig(buffer, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
        write_file(path.with_suffix(f".{kind}"), buffer.getvalue())
    plt.close(figure)
