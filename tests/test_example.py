"""Does the example of the docs run from end to end?"""

from __future__ import annotations

import runpy
import sys
from functools import partial
from pathlib import Path

import capax

EXAMPLE = Path(__file__).parent.parent / "examples" / "own_env.py"


def test_own_env_trains_evaluates_and_drives(tmp_path, monkeypatch, capsys):
    # the same lines over fewer steps and smaller sizes
    small = {"population": 8, "elites": 2, "horizon": 4, "hidden": 16, "start_steps": 100}
    small |= {"least_updates": 20, "most_updates": 20}
    real = capax.train
    monkeypatch.setattr(
        capax, "train", lambda env, **given: partial(real, settings=small)(env, **given | {"steps": 300})
    )
    monkeypatch.setattr(sys, "argv", ["own_env.py", str(tmp_path / "cart")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    told = capsys.readouterr().out.splitlines()
    assert "3 episodes, 300 steps" in told[0] and told[1].endswith("violations") and len(told) == 12
    assert all(line.startswith("push") for line in told[2:])
