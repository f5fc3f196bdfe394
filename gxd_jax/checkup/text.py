"""A check-up as text. Nothing here is traced: the reports hold NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gxd_jax.checkup.layer_report import STATES, LayerReport, usefulness
from gxd_jax.tables import aligned

_LEAST_USEFUL = 5
_MOST_INDICES = 12


def table(layers: Mapping[str, LayerReport]) -> str:
    """Returns reports of layers as text: a row a layer, and for a single network the indices of units in each state.

    Args:
        layers: Layer name -> its report, NumPy arrays.
    """
    head = ["layer", "units", "dead", "dormant", "saturated", "low activity", "saturation"]
    head += ["effective", "stable", "approximate rank", "mean |h|", "mean |w in|", "mean |w out|", "w in / initial"]
    head += ["mature", "mean age"]
    text = aligned([head, *(_row(name, layer) for name, layer in layers.items())])
    first = next(iter(layers.values()))
    if first.dead.ndim > 1:
        return f"{text}\n\nmeans over {first.effective_rank.size} networks"
    rows = [row for name, layer in layers.items() for row in _units(name, layer)]
    return f"{text}\n\nindices of units:\n{aligned(rows)}"


def _row(name: str, layer: LayerReport) -> list[str]:
    size = layer.dead.shape[-1]
    counts = [layer.dead, layer.dormant, layer.saturated, layer.low_activity]
    ranks = [layer.effective_rank, layer.stable_rank]
    sizes = [layer.activity, layer.incoming, layer.outgoing]
    return [
        name,
        str(size),
        *(f"{mask.sum(-1).mean().round(1):g}" for mask in counts),
        f"{layer.saturated_share.mean():.0%}",
        *(f"{rank.mean():.2f}" for rank in ranks),
        f"{layer.approximate_rank.mean().round(1):g} of {layer.highest_rank.mean():.0f}",
        *(f"{values.mean():.3g}" for values in sizes),
        "-" if layer.growth is None else f"{layer.growth.mean():.3g}",
        "-" if layer.mature_fraction is None else f"{layer.mature_fraction.mean():.0%}",
        "-" if layer.ages is None else f"{layer.ages.mean():.0f}",
    ]


def _units(name: str, layer: LayerReport) -> list[list[str]]:
    """Lists the units of each mask, and those of lowest utility (of lowest contribution without a resetting member)."""
    states = [(state.replace("_", " "), _listed(np.flatnonzero(getattr(layer, state)))) for state in STATES]
    scores, by = usefulness(layer)
    least = np.argsort(scores, kind="stable")[:_LEAST_USEFUL]
    states.append((f"lowest {by}", ", ".join(map(str, least))))
    return [[name if i == 0 else "", *pair] for i, pair in enumerate(states)]


def _listed(indices: np.ndarray) -> str:
    """Writes ascending indices as "0, 3-7, 9"."""
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1) if indices.size else []
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(texts[:_MOST_INDICES] + ["..."] * (len(texts) > _MOST_INDICES)) or "none"
