"""The example of the README runs as it stands."""

import re
from pathlib import Path

import numpy as np

import gxd_jax as gxd

README = Path(__file__).parents[1] / "README.md"


def test_the_twenty_lines_of_the_readme(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)[:1]
    names = {}
    exec(compile(example, str(README), "exec"), names)
    assert np.isfinite(names["loss_value"])
    assert str(names["loss_value"]) in capsys.readouterr().out
    info = gxd.reset_info(names["opt_state"])
    # 64 units at a thousandth, eligible from update 101 on: 100 updates owe 6.4, less what is newborn.
    assert [int(total) for total in info.totals.values()] == [6, 6]
