"""Benchmarks write what they measure with machine, commit and command, and pages show it."""

from __future__ import annotations

import ast
import json
import sys

import pytest

from benchmarks import record
from benchmarks.figures import speed, stored

MEASURING = (
    "checkpoint", "compare_sb3", "compare_torch", "continuous", "drill", "driving", "fused", "fused_images",
    "gridworld_study", "images", "kernels", "memory", "one_step_models", "racing", "second_start", "tabular", "without_gpu",
)  # fmt: skip
"""Scripts whose figures pages may quote."""


def test_a_measurement_names_machine_commit_and_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks/tabular.py", "sizes"])
    path = record.save("tabular", [{"what": "a solve", "ms": 2.125}])
    table = json.loads(path.read_text())
    assert path.relative_to(".").as_posix() == "runs/benchmarks/tabular.json"
    assert table["command"] == "python benchmarks/tabular.py sizes"
    assert table["machine"]["processor"] and table["machine"]["cores"] >= 1
    assert {"commit", "changed", "transcribed", "figures"} <= set(table)


@pytest.mark.parametrize("name", MEASURING)
def test_every_measuring_script_saves_its_figures(name):
    tree = ast.parse((stored.ROOT / "benchmarks" / f"{name}.py").read_text())
    calls = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert "save" in calls


def shown(monkeypatch, table):
    monkeypatch.setattr(stored, "read_json", lambda name: table)
    return speed.speed_table("any")


def test_a_table_begins_with_where_it_comes_from(monkeypatch):
    machine = {"processor": "a processor", "cores": 2, "load": 5.0, "accelerator": None, "versions": {"jax": "0.10"}}
    figures = [{"what": "a solve", "ms": 2.125, "count": 12345}, {"what": "two", "ms": None, "count": 1}]
    table = {
        "command": "python x.py",
        "commit": "0123456789",
        "machine": machine,
        "transcribed": False,
        "figures": figures,
    }
    text = shown(monkeypatch, {**table, "changed": True, "note": "Alone."})
    assert text.splitlines()[0] == (
        "`python x.py`; commit 0123456; a processor, 2 cores, jax 0.10, load of all processes 5 at the end; "
        "with uncommitted changes. Alone."
    )
    assert "| a solve | 2.12 | 12,345 |" in text
    assert "| two |  | 1 |" in text
    assert "transcribed" in shown(monkeypatch, {**table, "transcribed": True})


def test_the_output_of_capax_bench_is_shown_too(monkeypatch):
    row = {"part": "plan", "name": "states, fast", "value": 24.5, "unit": "ms", "evaluations_per_second": 640000.0}
    rows = [{**row, "share_of_floor": 0.225, "note": ""}]
    machine = {"device": "cpu", "cores": 2, "jax": "0.10", "tflops": {}}
    text = shown(monkeypatch, {"command": "capax bench", "commit": "0123456789", "machine": machine, "rows": rows})
    assert "| plan: states, fast | 24.5 | ms | 640,000 | 22.5 % |" in text
