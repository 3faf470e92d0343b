"""The presets `paper` and `published`: what differs, what is planned with, and that every rule for κ runs under both."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from optax.tree_utils import tree_get
from support.episodes import PLANS, planned_episode
from support.small_settings import IMAGE, TINY_VECTOR
from support.tiny_runs import without_times

import capax
from capax.agents.pets import Pets, PetsSettings, PlanCarry
from capax.agents.planned_common import EpisodeBudget
from capax.core.errors import InputError
from capax.core.types import Feedback, Imagined, Spec
from capax.envs.make import make
from capax.kappa.adam import Adam, AdamState
from capax.kappa.base import Kappa
from capax.kappa.conformal import Conformal
from capax.kappa.damped import Damped
from capax.planning.ccem import rank_candidates
from capax.planning.scoring import Terms, score_candidates
from capax.training.methods import settings_of
from capax.training.presets import PRESETS, PUBLISHED, PUBLISHED_IMAGE
from capax.training.request import Request, resolve


class Halving:
    """A user's rule: κ is halved after each planned episode."""

    def init(self) -> Any:
        return Kappa(1.0)

    def update(self, state: Any, feedback: Any) -> Any:
        return state if feedback.random else Kappa(state.kappa / 2.0)


def fast_cost(obs: Any, action: Any, next_obs: Any, info: Any) -> float:
    """A cost of 0 or 1."""
    return float(next_obs[0] > 0.2)


RULES: dict[str, Callable[[], Any]] = {
    "conformal": lambda: "conformal", "adam": lambda: "adam", "pi": lambda: "pi", "fixed": lambda: 0.5, "damped": Damped,
    "own": Halving,
}  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    "states": {"env": "capax/Integrator-v0", "settings": TINY_VECTOR | {"start_steps": 8}},
    "binary": {"env": "capax/Integrator-v0", "settings": TINY_VECTOR | {"start_steps": 8}, "cost": fast_cost},
    "images": {"env": "capax/Dot-v0", "settings": IMAGE | {"start_steps": 8}},
}


def train(out: Any, task: str, **options: Any) -> Any:
    """A random episode and two planned ones, of eight steps each."""
    return capax.train(**TASKS[task], out=out, steps=24, episode_steps=8, **options)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", ["paper", "published"])
def test_every_rule_plays_all_episodes(preset, task, rule, tmp_path):
    run = train(tmp_path / "run", task, preset=preset, kappa=RULES[rule]())
    assert [row["phase"] for row in run.episodes] == ["random", "plan", "plan"]
    kappas = [row["kappa"] for row in run.episodes]
    assert np.isfinite(kappas).all() and (rule != "fixed" or {*kappas} == {0.5})
    assert rule != "own" or kappas == [1.0, 1.0, 0.5]
    if task == "images":
        # with `published`, a fit makes its updates once, whatever came before it; with `paper`, once for each new episode
        assert int(tree_get(capax.load(run, **own(rule)).state.optimiser, "count")) == 2 * IMAGE["updates"]


def own(rule: str) -> dict[str, Any]:
    """What `capax.load` needs for a rule that no file holds."""
    return {"kappa": RULES[rule]()} if rule in ("damped", "own") else {}


def test_published_chooses_adam_without_a_bound_and_the_user_may_choose_otherwise(tmp_path):
    task = make("capax/Integrator-v0")

    def config(**options: Any) -> Any:
        return resolve(Request("capax/Integrator-v0", **options), task)

    published = config(preset="published")
    assert (published.kappa, published.rule) == ("adam", {"least": -1e30})
    assert (config(preset="paper").kappa, config(preset="paper").rule) == ("conformal", {})
    assert config(preset="paper", kappa="adam").rule == {}
    assert config(preset="published", kappa="adam", settings={"least": -0.5}).rule == {"least": -0.5}
    assert (config(preset="published", kappa="pi").rule, config(preset="published", kappa=0.5).kappa) == ({}, 0.5)
    task.close()


def test_presets_inherit_the_rule_of_their_base(monkeypatch):
    monkeypatch.setattr(PRESETS, "_entries", dict(PRESETS))  # what is registered is forgotten after the test
    task = make("capax/Integrator-v0")
    capax.register(capax.Preset("published-small", {"population": 20, "elites": 4}, base="published"))
    config = resolve(Request("capax/Integrator-v0", preset="published-small"), task)
    assert (config.kappa, config.rule) == ("adam", {"least": -1e30})
    assert config.setting("population", None) == 20 and config.setting("targets", None) == "raw"
    task.close()


def test_the_sizes_of_paper_and_published_are_the_same():
    paper, published = (settings_of("cap", "vector", preset) for preset in ("paper", "published"))
    for name in ("members", "hidden", "layers", "particles", "batch", "epochs", "learning_rate"):
        assert getattr(paper.ensemble, name) == getattr(published.ensemble, name)
    for name in ("horizon", "iterations", "population", "elites", "smoothing", "spread", "execute", "colour"):
        assert getattr(paper.cem, name) == getattr(published.cem, name)
    image = settings_of("cap", "image", "published")
    assert (image.rssm.batch, image.rssm.chunk + 1, image.rssm.updates, image.rssm.multiplier) == (
        50,
        50,
        100,
        10_000.0,
    )
    assert (image.rssm.bootstrap, image.rssm.floor, image.rssm.signal_weight, image.hold) == ("batch", 0.0, 1.0, 1)


@pytest.mark.parametrize(("changes", "heading"), [(PUBLISHED, "from states"), (PUBLISHED_IMAGE, "from images")])
def test_the_page_lists_every_setting_that_the_preset_changes(changes, heading):
    page = Path(__file__).parents[2].joinpath("docs", "published.md").read_text()
    (table,) = (part for part in page.split("\n## ") if part.startswith(f"What it restores, {heading}"))
    listed = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.partition(" | ")[0])}
    assert listed >= {*changes}


# κ.


def test_kappa_may_become_negative():
    # the first step of Adam is its rate: .1 down from .05
    below = Feedback(1.0, 2.0)
    assert Adam(least=-1e30).update(AdamState(0.05), below).kappa == pytest.approx(-0.05)
    assert Adam().update(AdamState(0.05), below).kappa == 0.0
    assert Adam(least=-0.02).update(AdamState(0.05), below).kappa == -0.02


def test_a_negative_kappa_pays_for_uncertainty():
    # costs 2 and uncertainty 3: 2 − .5 · 3 = .5
    parts = (jnp.full((1, 1, 4), value) for value in (0.0, 2.0, 3.0, 1.0))
    scores = score_candidates(Imagined(*parts), Terms(-0.5, 1.0, jnp.asarray(False)), budget=False, flags=False)
    assert scores.penalised.tolist() == [0.5] and scores.feasible.tolist() == [True]


# Plans.


def limit_of(spec: Spec, carry: PlanCarry, rule: Any = None, *, binary: bool, **changes: Any) -> float:
    """The limit of the next plan, per step."""
    agent = Pets(spec, rule or Adam(), 1, 1, settings_of("cap", "vector", "published", changes), 100)
    state = agent.example(agent.init(jr.key(0)))
    assert state.scaling is not None
    state = state._replace(scaling=state.scaling._replace(binary=jnp.asarray(binary)))
    return agent._limit(state, carry)[0]


def test_an_undiscounted_limit_is_a_pace():
    # 30 for 10 steps are 3 a step, whatever was spent; as a budget, 30 − 12 for the 6 steps that are left are 3 too, and
    # after 24, only 1 is left for each
    spec = Spec(30.0, 0.99, False, 10)
    spent = PlanCarry(None, EpisodeBudget(24.0, 4.0, 4))
    assert limit_of(spec, spent, binary=False) == 3.0
    assert limit_of(spec, spent, binary=True) == 3.0
    assert limit_of(spec, spent, binary=False, undiscounted_limit="budget", binary_costs="probability") == 1.0
    # a limit of 0 allows no step that may cost
    assert limit_of(Spec(0.0, 0.99, False, 10), spent, binary=True) == 0.0


def test_a_pace_has_candidates_of_one_scale():
    # with an action of doing nothing, the planner draws at several scales around it and around the present plan
    spec = Spec(30.0, 0.99, False, 10)
    rests = [Pets(spec, Adam(), 1, 2, settings_of("cap", "vector", p), 100)._rest for p in ("paper", "published")]
    assert rests == [(0.0, 0.0), None]


def test_a_discounted_limit_is_scaled_to_an_episode():
    # (1 − .99^1000) / (1 − .99) = 99.9957: 152 is 1.52007 a step
    assert limit_of(Spec(152.0, 0.99, True, 1000), PlanCarry(None), binary=False) == pytest.approx(1.52007, abs=1e-5)


def test_flags_need_a_pace():
    with pytest.raises(InputError, match="binary_costs is flag, which no budget can be kept with"):
        PetsSettings(binary_costs="flag")


def test_binary_costs_are_flags_and_dying_is_free():
    # logits −1, .5, −3 and κu = .9: the second step is flagged, 1 of 3; with κu = 1.1 the first one as well, 2 of 3
    def penalised(kappa: float, alive: Any) -> float:
        shape = (1, 1, 3)
        logit = jnp.array([-1.0, 0.5, -3.0]).reshape(shape)
        imagined = Imagined(jnp.zeros(shape), logit, jnp.ones(shape), jnp.asarray(alive, jnp.float32).reshape(shape))
        terms = Terms(kappa, 1.0, jnp.asarray(True), termination_cost=0.0)
        return float(score_candidates(imagined, terms, budget=False, flags=True).penalised[0])

    assert penalised(0.9, [1, 1, 1]) == pytest.approx(1 / 3) and penalised(1.1, [1, 1, 1]) == pytest.approx(2 / 3)
    assert penalised(1.1, [1, 0, 0]) == pytest.approx(1 / 3)  # dead after the first step: the others cost nothing


def test_plans_with_as_many_flags_stay_in_their_order():
    # both are flagged in every step; the second one less surely
    logit = jnp.array([[[5.0, 5.0]], [[1.0, 1.0]]])
    zero, one = jnp.zeros_like(logit), jnp.ones_like(logit)
    for break_ties, order in ((True, [1, 0]), (False, [0, 1])):
        terms = Terms(0.0, 0.0, jnp.asarray(True))
        scores = score_candidates(
            Imagined(zero, logit, zero, one), terms, budget=False, flags=True, break_ties=break_ties
        )
        assert rank_candidates(scores).tolist() == order


def test_the_budget_within_an_episode_can_be_switched_off():
    # three steps of a limit of 30 in 10 steps: 24 are spent, so little is left; without the budget, 3 a step stay
    spec = Spec(30.0, 0.99, False, 10)
    spent = PlanCarry(None, EpisodeBudget(24.0, 4.0, 4))
    assert limit_of(spec, spent, Conformal(), binary=False) < 1.0
    assert limit_of(spec, spent, Conformal(within_episode=False), binary=False) == 3.0
    rule = Conformal(within_episode=False)
    state = rule.init()._replace(kappa=0.7, margins=tuple(np.linspace(0.0, 100.0, 61)))
    assert rule.kappa_within_episode(state, 3.0, 0.5) == 0.7 < Conformal().kappa_within_episode(state, 3.0, 0.5)


def test_like_for_like_rules_differ_in_kappa_alone(tmp_path):
    options = {"preset": "paper", "discounted": True, "cost_limit": 10.0}
    settings = {"within_episode": False}
    tasks = TASKS["states"]
    run = capax.train(
        **(tasks | {"settings": tasks["settings"] | settings}),
        out=tmp_path / "run",
        steps=16,
        episode_steps=8,
        **options,
    )
    assert run.config.rule == settings and not capax.load(run).agent.rule.within_episode


def test_published_random_episodes_move_kappa_from_states_alone():
    # from states Adam's first step comes after the random episode; from images after the first planned one
    spec = Spec(1.0, 0.99, False, 3)
    agent = Pets(spec, Adam(), 1, 1, settings_of("cap", "vector", "published"), 100)
    costly = planned_episode(spec, [1.0, 1.0, 1.0], {})._replace(random=True)
    assert agent.adapt(agent.init(jr.key(0)), costly)[0].rule.kappa == pytest.approx(1.1)


def test_a_published_episode_tells_the_rule_its_planned_cost():
    # the mean planned cost is summed like the paid one: .2 + .3 + .1
    spec = Spec(1.0, 0.99, False, 3)
    agent = Pets(spec, Adam(), 1, 1, settings_of("cap", "vector", "published"), 100)
    state = agent.example(agent.init(jr.key(0)))
    _, metrics = agent.adapt(state, planned_episode(spec, [1.0, 0.0, 0.0], PLANS))
    assert metrics["planned_cost"] == pytest.approx(0.6) and metrics["paid_cost"] == 1.0


def test_published_runs_resume_like_any_other(tmp_path):
    whole = train(tmp_path / "whole", "images", preset="published")
    tasks = TASKS["images"]
    capax.train(**tasks, out=tmp_path / "parts", steps=16, episode_steps=8, preset="published")
    parts = capax.resume(tmp_path / "parts", steps=24)
    assert without_times(parts.episodes) == without_times(whole.episodes)
