"""Runs whose files the tests of this room change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.small_settings import TINY_VECTOR

import capax


def with_steps(run: Path, steps: int) -> Path:
    """The run, which is to have more steps from now on."""
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"steps": steps}))
    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three episodes that is to have five. The third one waits for the next fit."""
    out = tmp_path_factory.mktemp("run") / "run"
    settings = TINY_VECTOR | dict(start_steps=50, fit_every=120)
    capax.train("capax/Integrator-v0", steps=150, out=out, preset="fast", settings=settings)
    return with_steps(out, 250)


@pytest.fixture(scope="session")
def tabular(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three policies in a finite world that is to have five."""
    out = tmp_path_factory.mktemp("tabular") / "run"
    capax.train("capax/Gridworld-v0", steps=20, episode_steps=4, out=out, on_episode=lambda row: row["episode"] < 2)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def tabular_run(tabular: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tabular, tmp_path / "tabular")
