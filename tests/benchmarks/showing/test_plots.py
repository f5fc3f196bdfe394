"""The figures: what they show, and what they leave out."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from benchmarks.methods import METHODS
from benchmarks.showing import plots
from benchmarks.showing.styles import STYLES
from tests.benchmarks.showing.test_tables import VIEW, two_methods

LABELS = {"backprop": "backprop", "gxd": "CBP, `gxd`"}


def drawn(monkeypatch, tmp_path, curves):
    """Returns the figures by the names of their files, instead of writing them."""
    figures = {}
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: figures.update({path.name: figure}))
    plots.save_curves(VIEW._replace(diagnostics=("dead", "saturated", "utility")), LABELS, curves, tmp_path)
    plt.close("all")
    return figures


def test_a_panel_a_condition_with_gxd_on_top(monkeypatch, tmp_path):
    figure = drawn(monkeypatch, tmp_path, two_methods().assign(saturated=0, utility=np.nan))["curves"]
    assert [ax.get_title() for ax in figure.axes] == ["relu", "tanh"]
    for ax, offset in zip(figure.axes, (0.0, 0.3), strict=True):
        plain, gxd = ax.get_lines()
        np.testing.assert_allclose(gxd.get_ydata(), offset + 0.2 + 0.1 * np.arange(1, 5))
        assert (plain.get_color(), gxd.get_color()) == (STYLES["backprop"].colour, STYLES["gxd"].colour)
        assert gxd.get_zorder() > plain.get_zorder()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["backprop", "CBP, gxd"]


def test_panels_without_anything_are_left_out(monkeypatch, tmp_path):
    figures = drawn(monkeypatch, tmp_path, two_methods().assign(saturated=0, utility=np.nan))
    assert [ax.get_ylabel() for ax in figures["diagnostics"].axes if ax.get_visible()] == ["dead", "dead"]
    empty = two_methods().assign(dead=0, saturated=0, utility=np.nan)
    assert list(drawn(monkeypatch, tmp_path, empty)) == ["curves"]


def test_a_figure_is_as_high_as_its_legend(monkeypatch, tmp_path):
    curves = two_methods().assign(saturated=0, utility=np.nan)
    names = list(METHODS)[:20]
    many = pd.concat([curves[curves.method == "backprop"].assign(method=name) for name in names])
    monkeypatch.setitem(globals(), "LABELS", {name: name for name in names})
    figure = drawn(monkeypatch, tmp_path, many)["curves"]
    figure.draw_without_rendering()
    (legend,) = figure.legends
    bounds = legend.get_window_extent()
    assert len(legend.get_texts()) == 20
    assert bounds.y0 >= 0
    assert bounds.y1 <= figure.bbox.height
