"""CAP from images: a recurrent state-space model, constrained CEM on its beliefs, and a rule that moves κ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from capax.agents.planned_common import EpisodeBudget, FailureCount, all_finite, feedback, first_finite
from capax.agents.recent_cache import RecentCache
from capax.agents.starters import uniform
from capax.core.contracts import Agent, PlanningRule
from capax.core.errors import InputError
from capax.core.settings import Above, Whole, settle
from capax.core.types import Episode, Feedback, Key, Metrics, Spec
from capax.data.device_cache import ImageCache
from capax.data.image_episodes import ImageBuffer, ImageEpisode
from capax.kappa.binary import safety_margins
from capax.models import rssm, rssm_rollout
from capax.models.rssm import RSSM, Belief, RSSMSettings
from capax.models.rssm_fit import fit
from capax.planning.ccem import CEM, plan
from capax.planning.scoring import Terms
from capax.runtime.cpu_devices import replicate, split_candidates
from capax.runtime.lanes import batched, built_once


@dataclass(frozen=True)
class PlanetSettings:
    """Settings of the agent. The sizes are those of PlaNet and the paper, except what docs/deviations.md lists."""

    rssm: RSSMSettings = field(default_factory=RSSMSettings)
    cem: CEM = field(
        default_factory=lambda: CEM(horizon=12, iterations=10, population=1000, elites=100, smoothing=0.0, spread=1.0)
    )
    start_steps: Annotated[int, Whole(2)] = 5000
    """Random steps before the first fit (paper: 5 episodes)."""
    hold: Annotated[int, Whole()] = 8
    """Steps that a random action is held for, on average (published code: 1)."""
    episodes_per_fit: Annotated[int, Whole()] = 10
    """A fit makes its gradient steps once for each new episode, up to this many (published code: 1). The first fit, after the
    random start, has several new episodes."""
    buffer: Annotated[int, Whole(2)] = 1_000_000
    """Steps that are kept."""
    gamma: Annotated[float, Above(0.0, 0.999999)] = 0.99
    """Discount of a frame, in discounted sums."""

    def __post_init__(self) -> None:
        if not isinstance(self.rssm, RSSMSettings) or not isinstance(self.cem, CEM):
            raise InputError("rssm and cem are settings of their own: give RSSMSettings(...) and CEM(...).")
        settle(self)
        if self.rssm.chunk > self.buffer:
            raise InputError(f"buffer is {self.buffer}, less than chunk, {self.rssm.chunk}: give at least that many.")


class PlanetState(NamedTuple):
    """State of the agent between episodes."""

    model: RSSM
    optimiser: Any
    fits: int
    """Fits so far. Before the first, the agent acts at random."""
    binary: bool
    """Every cost so far was 0 or 1."""
    buffer: ImageBuffer
    rule: Any
    good: RSSM | None = None
    """Parameters of the previous fit: the fallback if the present ones fail."""
    failures: FailureCount = FailureCount()


class PlanCarry(NamedTuple):
    """The carry from step to step of an episode."""

    belief: Belief
    action: Any
    """The last action."""
    budget: EpisodeBudget = EpisodeBudget()


def packed_inputs(image: Any, terms: Sequence[float]) -> Any:
    """An image and some numbers in one array, for one copy to the device."""
    return np.concatenate([image.ravel(), np.array(terms, np.float32).view(np.uint8)])


def unpacked_inputs(inputs: Any, image: tuple[int, int, int]) -> tuple[Any, Any]:
    """The image and the numbers of `packed_inputs`, on the device."""
    pixels, terms = jnp.split(inputs, [math.prod(image)])
    return pixels.reshape(image), jax.lax.bitcast_convert_type(terms.reshape(-1, 4), jnp.float32)


@built_once
def compiled_step(settings: PlanetSettings, image_shape: tuple[int, int, int], action_dim: int) -> tuple[Any, Any]:
    """Two functions that agents of the same sizes share: one prepares a model, the other filters an image and plans."""
    draw = partial(rssm_rollout.draw_noise, horizon=settings.cem.horizon, action_dim=action_dim, settings=settings.rssm)
    each = rssm_rollout.noise_of_each(settings.rssm, settings.cem.horizon)
    rollout = split_candidates(partial(rssm_rollout.imagine, settings=settings.rssm), each)

    def step(key: Key, model: Any, inputs: Any, carry: Any) -> Any:
        (net, params), (belief, last) = model, carry
        image, (kappa, limit, binary) = unpacked_inputs(inputs, image_shape)
        k_filter, k_plan = jr.split(key)
        embedded = rssm.encode_image(net, rssm.quantise(image) + 0.5 / rssm.GREY_LEVELS)
        noise = jr.normal(k_filter, (settings.rssm.stoch,))
        belief, _, _ = rssm.filter_step(net, belief, last, embedded, noise, min_sd=settings.rssm.min_sd)
        warm = jnp.zeros((settings.cem.horizon, action_dim))
        start = rssm_rollout.prepare_start(params, belief, settings.cem.max_candidates, settings.rssm)
        terms = Terms(kappa, limit, binary > 0.0)
        actions, _, info = plan(k_plan, params, start, warm, terms, rollout=rollout, cem=settings.cem, draw=draw)
        return jnp.concatenate([actions[0], jnp.stack(info)]), (belief, actions[0])

    prepare = jax.jit(lambda net: (rssm.prepare_filter(net), rssm_rollout.prepare_rollout(net, settings.rssm)))
    return lambda net: replicate(prepare(net)), batched(jax.jit(step))


@dataclass(frozen=True)
class Planet(Agent[PlanetState]):
    """CAP with a latent model (Algorithm 1 with the binary cost of section 4.3)."""

    spec: Spec
    rule: PlanningRule
    image: tuple[int, int, int]
    action_dim: int
    settings: PlanetSettings
    capacity: int | None = None
    """Steps of the run, for which a GPU reserves memory; None: as many as the buffer may hold."""

    @cached_property
    def _images(self) -> ImageCache:
        shortest = 1 if self.settings.rssm.pieces == "anywhere" else self.settings.rssm.chunk
        return ImageCache(self.capacity or self.settings.buffer, shortest)

    @cached_property
    def _prepared(self) -> RecentCache:
        return RecentCache(compiled_step(self.settings, self.image, self.action_dim)[0])

    @cached_property
    def _decode(self) -> Any:
        return jax.jit(lambda net, belief: rssm.decode(net, belief.feature[None])[0])

    def init(self, key: Key) -> PlanetState:
        model = rssm.init(key, self.image[-1], self.action_dim, self.settings.rssm)
        optimiser = rssm.optimiser(self.settings.rssm).init(model)
        return PlanetState(model, optimiser, 0, True, ImageBuffer(()), self.rule.init())

    def example(self, initial: PlanetState) -> PlanetState:
        images, actions = np.zeros((1, *self.image), np.uint8), np.zeros((0, self.action_dim), np.float32)
        signal = np.zeros(0, np.float32)
        blank = ImageEpisode(images, actions, signal, signal)
        return initial._replace(buffer=ImageBuffer((blank,)), good=initial.model)

    def can_act(self, state: PlanetState) -> bool:
        return state.fits > 0

    def begin(self, state: PlanetState) -> PlanCarry:
        return PlanCarry(*replicate((rssm.initial_belief((), self.settings.rssm), jnp.zeros(self.action_dim))))

    def act(self, state: PlanetState, carry: PlanCarry, obs: Any, key: Key) -> tuple[Any, PlanCarry, Metrics]:
        """Filter the image, then take the first action of the best plan within the limit."""
        if state.fits == 0:
            return np.asarray(uniform(key, self.action_dim)), carry, {}
        budget, limit = carry.budget, self.spec.limit / self.spec.scale
        if not state.binary:
            limit = self.rule.step_limit(limit, budget.left(self.spec))
        excess, reward_weight = budget.spent - self.spec.limit, self.spec.reward_weight(budget.steps)
        kappa = self.rule.kappa_within_episode(state.rule, excess, reward_weight)
        (_, step), last = compiled_step(self.settings, self.image, self.action_dim), (carry.belief, carry.action)
        inputs = packed_inputs(obs, [kappa, limit, state.binary])

        def plan_with(net: RSSM) -> Any:
            return lambda: step(key, self._prepared(net), inputs, last)

        good = None if state.good is None else plan_with(state.good)
        plans = plan_with(state.model), good
        action, (belief, executed), metrics = first_finite(
            plans, lambda: (np.asarray(carry.action), last), self.action_dim
        )
        metrics = {**metrics, "plan_kappa": float(kappa), "plan_limit": float(limit)}
        return action, carry._replace(belief=belief, action=executed), metrics

    def observe_cost(self, carry: PlanCarry, cost: float) -> PlanCarry:
        return carry._replace(budget=carry.budget.after(self.spec, cost))

    def learn(self, state: PlanetState, episodes: Sequence[Episode], key: Key) -> tuple[PlanetState, Metrics]:
        """Add new episodes to the buffer, then train on sequences from all of it."""
        settings, buffer, binary = self.settings.rssm, state.buffer, state.binary
        for episode in episodes:
            buffer = buffer.add(episode, self.settings.buffer)
            binary = binary and bool(np.isin(episode.cost, (0.0, 1.0)).all())
        rule = (
            state.rule if binary == state.binary else self.rule.init()
        )  # logits became costs: the rule's state has other units
        state = state._replace(buffer=buffer, binary=binary, rule=rule)
        k_draw, k_update = jr.split(key)
        rng = np.random.default_rng(np.asarray(jr.key_data(k_draw)))
        model, optimiser = state.model, state.optimiser
        for number in range(min(self.settings.episodes_per_fit, max(1, len(episodes)))):
            shape = settings.updates, settings.batch
            sequences = buffer.pick(rng, shape, settings.chunk, anywhere=settings.pieces == "anywhere")
            k_fit = jr.fold_in(k_update, number)
            model, optimiser, loss_parts, margin_samples = fit(
                model, optimiser, self._images, buffer, sequences, binary, k_fit, settings
            )
        losses = {f"loss_{name}": float(part) for name, part in loss_parts._asdict().items()}
        loss = sum(losses.values())
        if not (np.isfinite(loss) and all_finite(model)):
            failures = state.failures.bad_fit(settings.learning_rate)
            return state._replace(failures=failures), {"bad_fits": failures.fits}
        good = None if state.fits == 0 else state.model
        failures = state.failures._replace(fits=0)
        rule = self.rule.after_fit(rule, safety_margins(*map(np.asarray, margin_samples))) if binary else rule
        changes = dict(rule=rule, model=model, optimiser=optimiser, fits=state.fits + 1, good=good, failures=failures)
        return state._replace(**changes), {"model_loss": loss, **losses}

    def adapt(self, state: PlanetState, episode: Episode) -> tuple[PlanetState, Metrics]:
        """Move κ by the paid cost and the planned one."""
        failures = state.failures.after(episode)
        lesson, metrics = self.feedback(state, episode)
        rule = state.rule if episode.random else self.rule.update(state.rule, lesson)
        before = {**self.rule.report(state.rule), "kappa": float(state.rule.kappa)}
        return state._replace(rule=rule, failures=failures), {**before, **metrics, "kappa_next": float(rule.kappa)}

    def feedback(self, state: PlanetState, episode: Episode) -> tuple[Feedback, Metrics]:
        """The feedback of an episode for the rule, and metrics."""
        return feedback(self.spec, state.binary, episode)

    def decoded_image(self, state: PlanetState, carry: PlanCarry) -> Any:
        """The image that the belief decodes to, uint8."""
        picture = np.asarray(self._decode(state.model, carry.belief))
        return np.clip((picture + 0.5) * 256.0, 0.0, 255.0).astype(np.uint8)
