"""The example of the docs runs from end to end."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from support.small_settings import VECTOR

import capax

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_env.py"


def test_own_env_trains_evaluates_and_drives(tmp_path, monkeypatch, capsys):
    # the same lines over fewer steps and smaller sizes
    train = capax.train

    def train_briefly(env: Any, **options: Any) -> Any:
        return train(env, settings=VECTOR | {"start_steps": 100}, **options | {"steps": 300})

    monkeypatch.setattr(capax, "train", train_briefly)
    monkeypatch.setattr(sys, "argv", ["own_env.py", str(tmp_path / "cart")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert "3 episodes, 300 steps" in lines[0] and lines[1].endswith("violations") and len(lines) == 12
    assert all(line.startswith("push") for line in lines[2:])
