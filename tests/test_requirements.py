"""The locked requirements: every dependency is in them, in the range of pyproject.toml, and every file has a hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {"run": [], "dev": PROJECT["project"]["optional-dependencies"]["dev"]}


def entries(lock: str) -> list[str]:
    """The requirements of a lock file, each with its hashes."""
    text = "\n".join(
        line for line in (ROOT / "requirements" / f"{lock}.txt").read_text().splitlines() if line[:1] != "#"
    )
    return [entry for entry in re.split(r"\n(?=\S)", text) if entry]


def locked(lock: str) -> dict[str, str]:
    """The version of each package."""
    heads = [Requirement(entry.partition("\\")[0]) for entry in entries(lock)]
    return {canonicalize_name(head.name): next(iter(head.specifier)).version for head in heads}


@pytest.mark.parametrize("lock", EXTRAS)
def test_every_requirement_is_locked_in_its_range(lock):
    versions = locked(lock)
    for text in [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *EXTRAS[lock]]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), text


@pytest.mark.parametrize("lock", EXTRAS)
def test_every_requirement_has_hashes_and_one_version(lock):
    for entry in entries(lock):
        assert re.fullmatch(r"[^\n]*==[^\n]*\\(\n    --hash=sha256:[0-9a-f]{64}( \\)?)+", entry), entry[:80]


def test_tests_run_with_the_versions_that_users_get():
    run, dev = locked("run"), locked("dev")
    assert {name: dev[name] for name in run} == run


def test_the_build_requirement_is_one_version():
    (build,) = PROJECT["build-system"]["requires"]
    assert build in (ROOT / "requirements" / "build.in").read_text().splitlines()


def test_nothing_is_installed_without_a_hash_but_capax_itself():
    installs = [line for line in (ROOT / "Makefile").read_text().splitlines() if re.search(r"\binstall\b(?!ed)", line)]
    commands = [line.strip() for line in installs if not line.startswith("#")]
    assert len(commands) == 4
    for command in commands:
        assert "--no-deps --require-hashes -r " in command or command.endswith("--no-deps --no-build-isolation -e ."), (
            command
        )
