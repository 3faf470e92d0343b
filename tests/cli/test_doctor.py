"""`capax doctor` sees what is missing, says what to do about it, and always ends."""

from __future__ import annotations

import json
import sys
from importlib import metadata

import gymnasium as gym
import pytest
from support.doctor_fixtures import advice_of, description_of, hide_modules
from support.doctor_fixtures import answers as answers
from support.doctor_fixtures import bare as bare

import capax
from capax.cli import machine
from capax.cli.doctor import Finding, as_json, examine, page
from capax.runtime import isolated


def raise_not_found(name: str) -> None:
    """Replaces a function of `importlib.metadata`."""
    raise metadata.PackageNotFoundError(name)


# All checks.


def test_this_machine_is_examined(tmp_path):
    findings = examine(tmp_path)
    names = [finding.name for finding in findings]
    assert names[:5] == ["Python", "capax", "JAX", "processor", "memory"] and names[-2:] == ["disk", "folder"]
    assert {"MuJoCo robots", "pendulum", "integrator", "gridworld", "Box2D", "drawing", "videos"} < set(names)
    for finding in findings:
        assert "the check failed" not in finding.found and "\n" not in finding.found
        if finding.level != "ok":
            advice_of(finding[1:], finding.level)
        else:
            assert finding.advice is None
    assert all(finding.level == "ok" for finding in findings if finding.name in ("Python", "capax", "MuJoCo robots"))
    assert page(findings).count("\n") < 40
    assert list(tmp_path.iterdir()) == []


def test_every_task_of_capax_is_in_one_family(tmp_path):
    played = [name for check in machine.checks(tmp_path).values() for name in getattr(check, "args", ("", ()))[1:]]
    ours = sorted(name for name in gym.registry if name.startswith("capax/"))
    assert sorted(name for names in played for name in names) == ours and len(ours) >= 8


def test_a_check_that_raises_is_a_finding_and_the_rest_follows(tmp_path, monkeypatch):
    def broken() -> None:
        raise ZeroDivisionError("a\n  \x1b[31mb" + 500 * "c")

    checks = {"first": broken, "second": lambda: ("ok", "fine", None)}
    monkeypatch.setattr("capax.cli.doctor.checks", lambda folder: checks)
    first, second = examine(tmp_path)
    assert first.found.startswith(r"the check failed (ZeroDivisionError: a \x1b[31mbccc")
    assert len(first.found) == 200 and first.found.endswith("…")
    assert "capax doctor --json" in advice_of(first[1:], "missing")
    assert second == Finding("second", "ok", "fine", None)


def test_an_interrupt_is_no_finding(tmp_path, monkeypatch):
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("capax.cli.doctor.checks", lambda folder: {"first": stopped})
    with pytest.raises(KeyboardInterrupt):
        examine(tmp_path)


def test_json_gives_the_findings_back(tmp_path, answers):
    answers(isolated.CallFailed("no"))
    findings = examine(tmp_path)
    assert [Finding(**row) for row in json.loads(json.dumps(as_json(findings)))] == findings


# The page.

FINDINGS = [
    Finding("a", "ok", "fine", None),
    Finding("longer", "missing", "nothing at all", "Run pip install something."),
    Finding("b", "note", "so so", "Think about it."),
]


def test_the_page():
    assert page(FINDINGS).splitlines() == [
        "ok  a       fine",
        "--  longer  nothing at all",
        "              Run pip install something.",
        "    b       so so",
        "              Think about it.",
        "",
        "1 thing is missing: see the line with --.",
    ]


@pytest.mark.parametrize(("chosen", "summary"), [
    ([], "Everything needed is here."),
    ([0], "Everything needed is here."),
    ([0, 2], "Everything needed is here; lines without ok are worth a look."),
    ([1, 1, 2], "2 things are missing: see the lines with --."),
])  # fmt: skip
def test_the_last_line_sums_up(chosen, summary):
    assert page([FINDINGS[i] for i in chosen]).splitlines()[-1] == summary


@pytest.mark.parametrize(("width", "max_columns"), [(1, 40), (40, 40), (60, 60), (100, 100), (1000, 100)])
def test_the_page_fits_and_loses_nothing(width, max_columns):
    wordy = [finding._replace(found=f"{'x' * 150} {'word ' * 40}end") for finding in FINDINGS]
    lines = page(wordy, width).splitlines()
    assert max(map(len, lines)) <= max_columns
    flat = "".join(lines).replace(" ", "")
    assert flat.count("x" * 150) == 3 and flat.count("wordend") == 3


def test_a_machine_where_nothing_works_has_a_page(tmp_path, answers, monkeypatch):
    answers(isolated.CallFailed("no answer within 60 s"))
    hide_modules(monkeypatch, "mujoco", "tensorboard", "packaging", "fcntl")
    monkeypatch.setattr(metadata, "version", raise_not_found)
    findings = examine(tmp_path)
    lines = page(findings).splitlines()
    missing = [finding for finding in findings if finding.level == "missing"]
    assert len(missing) >= 8
    assert sum(line.startswith("--  ") for line in lines) == len(missing)
    starts = [line.strip() for line in lines]
    for finding in missing:
        advice = advice_of(finding[1:], "missing")
        assert any(start and advice.startswith(start) for start in starts)
    assert lines[-1] == f"{len(missing)} things are missing: see the lines with --."


# Python, and what is installed.


def test_python_and_its_range(monkeypatch):
    assert description_of(machine.python()).startswith(".".join(map(str, sys.version_info[:3])))
    for version, supported in (("3.10.9", False), ("3.11.0", True), ("3.13.0rc1", True), ("3.14.0", False)):
        monkeypatch.setattr(machine.platform, "python_version", lambda version=version: version)
        if supported:
            assert version in description_of(machine.python())
        else:
            assert advice_of(machine.python(), "missing") == "Use a Python >=3.11 and <3.14."


def test_packages_are_named_that_are_missing_or_of_another_version(monkeypatch):
    assert description_of(machine.packages()).startswith(f"{capax.__version__}, and the ")
    requirements = ["numpy<3,>=1", "no-such-package>=2", "gymnasium<0.2,>=0.1", 'nor-this>=1; extra == "gpu"']
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    advice = advice_of(machine.packages(), "missing")
    assert advice == "Run pip install 'no-such-package>=2' 'gymnasium<0.2,>=0.1'."
    description = machine.packages()[1]
    assert "no-such-package is missing" in description
    assert f"gymnasium is {gym.__version__} and not >=0.1 and <0.2" in description
    assert "numpy" not in description and "nor-this" not in description


def test_without_packaging_only_the_presence_of_packages_is_checked(monkeypatch):
    hide_modules(monkeypatch, "packaging")
    monkeypatch.setattr(metadata, "requires", lambda name: ["gymnasium<0.2,>=0.1"])
    assert "the 1 packages" in description_of(machine.packages())
    monkeypatch.setattr(metadata, "requires", lambda name: ["no-such-package[extra]<0.2"])
    assert "'no-such-package[extra]<0.2'" in advice_of(machine.packages(), "missing")


def test_capax_that_is_not_installed_is_a_note(monkeypatch):
    monkeypatch.setattr(metadata, "requires", raise_not_found)
    monkeypatch.setattr(metadata, "metadata", raise_not_found)
    assert "pip install ." in advice_of(machine.packages(), "note")
    description_of(machine.python())


@pytest.mark.parametrize(("modules", "description"), [
    (["tensorboard", "tensorboardX"], "not installed"),
    (["tensorboard"], "tensorboard is not installed"),
    (["tensorboardX"], "tensorboardX is not installed"),
])  # fmt: skip
def test_tensorboard_is_optional(monkeypatch, modules, description):
    assert description_of(machine.tensorboard()) == "installed"
    hide_modules(monkeypatch, *modules)
    assert machine.tensorboard()[1] == description
    assert "pip install 'capax[tensorboard]'" in advice_of(machine.tensorboard(), "note")
