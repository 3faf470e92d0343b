"""The package as an interactive user meets it: `dir(capax)`, and how runs and policies are shown."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.tiny_runs import train_random, train_tiny

import capax
from capax.core.errors import InputError
from capax.runs.run import Run


class Cells(HTMLParser):
    """Reads a table of two columns into `rows`. Any tag but those of a table is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: dict[str, str] = {}
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.rows = dict(zip(self.texts[::2], self.texts[1::2], strict=True))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in ("table", "tr", "th", "td") and not attrs, tag
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("th", "td"):
            self.texts.append(data)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("runs") / "<b>&run").folder


# Names.


def test_every_public_name_is_in_dir_and_can_be_reached():
    assert set(capax.__all__) <= set(dir(capax)) and dir(capax) == sorted(dir(capax))
    for name in capax.__all__:
        assert getattr(capax, name) is not None, name
    assert {"train", "resume", "load", "evaluate", "open_run", "report", "register", "Agent", "Rule"} <= set(dir(capax))


def test_dir_has_only_public_names_and_those_of_every_module():
    assert all(name in capax.__all__ or name.startswith("__") for name in dir(capax))


def test_report_is_a_function_before_and_after_its_room_is_imported(trained, tmp_path):
    code = f"""
import capax
for name in "first", "second":
    capax.report({str(trained)!r}, f"{tmp_path}/{{name}}.png")
    import capax.reporting.runs
    from capax.reporting import training
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.png", "second.png"]


def test_functions_are_functions_whatever_was_imported():
    from capax.reporting import runs, training  # noqa: F401

    for name in capax.__all__:
        assert callable(getattr(capax, name)) or name == "__version__", name


def test_a_name_that_is_missing_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'capax' has no attribute 'trian'"):
        _ = capax.trian
    assert not hasattr(capax, "_no_such_name")


def test_import_and_dir_do_not_import_jax():
    code = "import sys, capax; dir(capax); capax.__version__; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Runs.


def test_repr_of_a_run_is_how_it_is_made(trained):
    assert repr(Run(trained)) == f"Run({str(trained)!r})"
    assert repr(capax.open_run(trained)) == repr(Run(trained))
    assert repr(Run(Path("nowhere"))) == "Run('nowhere')"


def test_str_of_a_run_tells_planned_violations_from_random_ones(trained, tmp_path):
    rows = Run(trained).episodes
    assert any(row["phase"] == "random" for row in rows)
    planned, random = (
        sum(row["violation"] for row in rows if (row["phase"] == "random") == is_random) for is_random in (False, True)
    )
    text = f"{planned} violation{'s' * (planned != 1)} in planned episodes, {random} in random ones"
    assert str(Run(trained)).endswith(text) and f"{len(rows)} episodes" in str(Run(trained))
    assert str(train_random(tmp_path / "run")).endswith("0 violations in planned episodes, 3 in random ones")


def test_a_run_is_a_table_in_a_notebook_and_its_text_is_escaped(trained):
    text = Run(trained)._repr_html_()
    assert "<b>" not in text and html.escape(str(trained)) in text
    cells, rows = Cells(text).rows, Run(trained).episodes
    assert cells["folder"] == str(trained) and cells["method"] == "cap, κ conformal" and cells["limit"] == "65"
    assert cells["episodes"] == str(len(rows)) and cells["steps"] == str(rows[-1]["steps"])
    assert "in planned episodes" in cells["violations"]


def test_the_text_of_a_config_is_escaped(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"task": "<script>alert(1)</script>"}))
    text = Run(run)._repr_html_()
    assert "<script" not in text and Cells(text).rows["task"] == "<script>alert(1)</script>"


@pytest.mark.parametrize("content", [None, "{", '{"task": 1, "method": 2}', '{"task": 1, "method": 2, "format": 1}'])
def test_a_folder_that_cannot_be_read_is_shown_all_the_same(trained, tmp_path, content):
    run = tmp_path / "run"
    if content is not None:
        shutil.copytree(trained, run)
        (run / "config.json").write_text(content)
    with pytest.raises(InputError) as refusal:
        _ = Run(run).config
    assert str(Run(run)) == str(refusal.value)
    assert Cells(Run(run)._repr_html_()).rows == {"folder": str(run), "state": str(refusal.value)}


@pytest.mark.parametrize("row", ['{"episode": 0}', '{"return": "x", "cost": [], "violation": 1, "steps": {}}'])
def test_a_run_with_odd_rows_is_shown_all_the_same(trained, tmp_path, row):
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "episodes.jsonl").write_text(f"{row}\n")
    assert Cells(Run(run)._repr_html_()).rows == {"folder": str(run), "state": "cannot be read"}
    assert str(Run(run)).startswith(f"{run}: a run that cannot be summarised")


# Policies.


def test_a_policy_says_what_it_maps_to_what(trained, tmp_path):
    policy = capax.load(trained)
    task = Run(trained).config.task
    assert repr(policy) == f"Policy({task}, cap: 2 numbers -> 1 action)"
    assert policy._repr_html_() == f"<code>{html.escape(repr(policy))}</code>" and "->" not in policy._repr_html_()


def test_a_policy_shows_no_control_character_of_a_configuration(trained):
    policy = capax.load(trained)
    policy.config = replace(policy.config, task="a\x1b]0;title\x07\nb")
    assert repr(policy).startswith(r"Policy(a\x1b]0;title\x07\nb, cap: ")


def test_a_policy_of_a_finite_world_says_its_size(tmp_path):
    run = capax.train("capax/Gridworld-v0", steps=12, episode_steps=4, out=tmp_path / "run", method="random")
    states, actions = run.config.states, run.config.actions
    policy = capax.load(run)
    assert repr(policy) == f"TablePolicy({states} states -> {actions} actions)"
    assert policy._repr_html_() == f"<code>{html.escape(repr(policy))}</code>"
