"""Methods without settings, and methods that cannot be registered as they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.toy_envs import walk

import capax
from capax.core.errors import InputError
from capax.training.methods import METHODS


class PushState(NamedTuple):
    """Episodes that were learned from."""

    episodes: int


class Push(capax.Agent[PushState]):
    """Pushes less with every episode. It has no settings."""

    def __init__(self, ingredients: capax.Ingredients) -> None:
        self.spec = ingredients.spec
        assert ingredients.settings is None

    def init(self, key: Any) -> PushState:
        return PushState(0)

    def begin(self, state: PushState) -> Any:
        return 1.0 / (1 + state.episodes)

    def act(self, state: PushState, carry: Any, obs: Any, key: Any) -> Any:
        return np.array([carry]), carry, {"push": carry}

    def learn(self, state: PushState, episodes: Any, key: Any) -> Any:
        return PushState(state.episodes + len(episodes)), {}


@pytest.fixture(autouse=True)
def methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS))


@pytest.fixture
def train(tmp_path: Any) -> Callable[..., capax.Run]:
    """Trains the method `push` for three episodes."""
    capax.register(capax.Method("push", Push, {"vector": None}, random_start=False))
    return lambda **options: capax.train(
        walk, method="push", steps=30, cost_limit=12.0, episode_steps=10, out=tmp_path / "run", **options
    )


@pytest.mark.parametrize("preset", ["paper", "fast"])
def test_a_method_without_settings_is_trained_with_any_preset(train, preset):
    run = train(preset=preset)
    assert [row["push"] for row in run.episodes] == pytest.approx([1.0, 1 / 2, 1 / 3])
    assert run.config.settings == {} and capax.load(run)(np.zeros(2)) is not None


def test_a_setting_of_a_method_without_settings_is_refused(train, tmp_path):
    with pytest.raises(InputError, match=r"^there is no setting 'spread': the method has none\.$"):
        train(settings={"spread": 0.5})
    assert not (tmp_path / "run").exists()


class NoDataclass:
    """Settings that have no fields to change."""


@pytest.mark.parametrize(("settings", "message"), [
    ({"vectors": None}, "the method mine has settings for 'vectors': choose vector, image, finite."),
    ({"vector": NoDataclass}, "the settings of the method mine are "),
    ({"vector": {"spread": 0.5}}, "the settings of the method mine are {'spread': 0.5}: give an instance of a dataclass, or "),
])  # fmt: skip
def test_what_cannot_be_settings_is_refused_before_a_run(settings, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        capax.Method("mine", Push, settings)
