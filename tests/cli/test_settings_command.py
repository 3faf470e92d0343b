"""`capax settings`: every setting of every method and rule, with its default, range and meaning."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from capax.cli.main import main
from capax.kappa.rules import rule_settings, rules_of
from capax.training.methods import METHODS
from capax.training.presets import preset_settings


def tables(capsys: pytest.CaptureFixture[str], *method: str) -> dict[str, dict[str, dict[str, Any]]]:
    """The tables that are printed as JSON: by title, the settings by name."""
    main(["settings", *method, "--json"])
    printed = json.loads(capsys.readouterr().out)
    return {table["title"]: {row["name"]: row for row in table["settings"]} for table in printed}


def leaves(settings: Any) -> dict[str, Any]:
    """The settings of a dataclass and of its parts."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    parts = [leaves(value) for value in values.values() if is_dataclass(value)]
    own = {name: value for name, value in values.items() if not is_dataclass(value)}
    return own | {name: value for part in parts for name, value in part.items()}


@pytest.mark.parametrize(("method", "kind"), [
    (name, kind) for name, method in METHODS.items() for kind in method.settings if method.settings[kind] is not None
])  # fmt: skip
def test_every_setting_of_a_method_is_listed_with_all_presets(capsys, method, kind):
    own = METHODS[method].settings[kind]
    paper, published, fast, budget = (
        leaves(preset_settings(own, method, kind, *preset))
        for preset in (("paper",), ("published",), ("fast",), ("fast", True))
    )
    candidates = [
        table
        for title, table in tables(capsys, method).items()
        if f"{kind}s" in title and method in title.split(" (")[0].split(", ")
    ]
    assert len(candidates) == 1
    columns = "paper", "published", "fast", "fast_undiscounted"
    assert {name: tuple(row[column] for column in columns) for name, row in candidates[0].items()} == {
        name: (paper[name], published[name], fast[name], budget[name]) for name in paper
    }


def test_every_setting_has_a_range_and_a_meaning(capsys):
    for title, table in tables(capsys).items():
        for name, row in table.items():
            assert row["wanted"] and row["meaning"].endswith("."), (title, name)
            assert "\n" not in row["meaning"] and '"' not in row["wanted"], (title, name)


def test_all_methods_share_tables_where_their_settings_are_equal(capsys):
    titles = list(tables(capsys))
    assert "cap, ccem, cem, random (observations are vectors)" in titles
    assert "cap, ccem, cem, random (observations are images)" in titles
    assert "ppo, ppo-lag (observations are vectors or images)" in titles


@pytest.mark.parametrize(("rule", "kind"), [
    (rule, kind) for kind in ("vector", "image", "finite") for rule in rules_of(kind)
])  # fmt: skip
def test_the_parameters_of_a_rule_are_those_of_the_kind_of_task(capsys, rule, kind):
    words = {"vector": "vectors", "image": "images", "finite": "finite world"}[kind]
    (table,) = (
        table
        for title, table in tables(capsys, "cap").items()
        if title == f"--kappa {rule}" or (title.startswith(f"--kappa {rule} (") and words in title)
    )
    assert {name: row["paper"] for name, row in table.items()} == rule_settings(rule, kind, 0.02)


def test_only_methods_that_choose_kappa_have_the_rules(capsys):
    assert any(title.startswith("--kappa") for title in tables(capsys, "cap"))
    assert not any(title.startswith("--kappa") for title in tables(capsys, "ppo"))
    # the violation rate is an option, not a setting
    assert "rate" not in tables(capsys, "cap")["--kappa conformal"]


def test_the_tables_are_printed_as_text(capsys):
    main(["settings", "cap"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cap: conservative and adaptive"
    heads = next(line for line in lines if line.split()[:1] == ["setting"])
    assert heads.split()[:6] == ["setting", "paper", "published", "fast", "fast,", "undiscounted"]
    (population,) = (line for line in lines if line.split()[:1] == ["population"] and "64" in line)
    assert population.split()[:3] == ["population", "500", "64"]  # the paper's, and that of the preset fast
    assert lines[-1].startswith("Change one with --set NAME=VALUE")
    assert "The default here is the column fast" in lines[-2]
    assert max(map(len, lines)) <= 132


def test_a_method_without_settings_says_so(capsys):
    main(["settings", "calibrated"])
    assert capsys.readouterr().out.splitlines() == [
        "calibrated: a margin in standard errors",
        "This method has no settings.",
    ]
    assert tables(capsys, "calibrated") == {}


def test_an_unknown_method_is_refused(refusal):
    assert refusal("settings", "cpa") == "there is no method 'cpa': did you mean cap?"
    assert refusal("settings", "xyz", "--json").startswith("there is no method 'xyz': choose cap, ccem,")
