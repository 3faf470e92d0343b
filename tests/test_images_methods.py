"""Does every method and rule work from images, the same way twice, and is the small task learned?"""

from __future__ import annotations

import json

import pytest
from test_images import TINY

import capax


def trained(out, **options):
    return capax.train("capax/Dot-v0", steps=32, out=out, preset="fast", settings=TINY, episode_steps=8, **options)


def told(run):
    """Its rows without what clocks say."""
    return [json.dumps({name: value for name, value in row.items() if name != "time"}) for row in run.episodes]


@pytest.mark.parametrize("options", [
    {"kappa": "conformal"}, {"kappa": "adam"}, {"kappa": "pi"}, {"kappa": 0.5}, {"method": "ccem"}, {"method": "cem"},
    {"method": "random"},
])  # fmt: skip
def test_every_method_and_rule(options, tmp_path):
    run = trained(tmp_path / "run", **options)
    phases = [row["phase"] for row in run.episodes]
    assert phases == ["random"] * 2 + ["random" if options.get("method") == "random" else "plan"] * 2
    kappas = [row["kappa"] for row in run.episodes]
    if "method" in options:
        assert {*kappas} <= {0.0, None}
    elif options["kappa"] == 0.5:
        assert {*kappas[2:]} == {0.5}


def test_the_same_seed_gives_the_same_rows(tmp_path):
    first, second, other = (trained(tmp_path / f"{at}", seed=seed) for at, seed in enumerate((5, 5, 6)))
    assert told(first) == told(second) != told(other)


@pytest.mark.slow
def test_the_dot_goes_around_the_hazard(tmp_path):
    run = capax.train("capax/Dot-v0", steps=2000, out=tmp_path / "run", preset="fast", seed=0)
    last = run.episodes[-10:]
    assert sum(row["return"] for row in last) / 10 > 3.5  # of 4.8; random ones have less than 0
    assert sum(row["violation"] for row in run.episodes if row["phase"] == "plan") <= 6
