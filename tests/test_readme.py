"""The examples of the README run as they stand."""

import re
from pathlib import Path

import numpy as np

import gxd_jax as gxd

README = Path(__file__).parents[1] / "README.md"


def test_the_twenty_lines_and_what_continues_them(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = {}
    exec(compile(examples[0], str(README), "exec"), names)
    assert np.isfinite(names["loss_value"])
    assert str(names["loss_value"]) in capsys.readouterr().out
    info = gxd.reset_info(names["opt_state"])
    # 64 units at a thousandth, eligible from update 101 on: 100 updates owe 6.4, less what is newborn.
    assert [int(total) for total in info.totals.values()] == [6, 6]
    (check_up,) = [example for example in examples if "check_up" in example]
    exec(compile(check_up, str(README), "exec"), names)
    assert "Dense_1" in capsys.readouterr().out
    assert (tmp_path / "check_up.png").read_bytes().startswith(b"\x89PNG")
    (sharded,) = [example for example in examples if "NamedSharding" in example]
    exec(compile(sharded, str(README), "exec"), names)
    assert np.isfinite(names["loss_value"])
