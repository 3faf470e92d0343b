"""CAP from images: a recurrent state-space model, constrained CEM among its beliefs, and a rule that moves κ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from capax.agents.adapting import Purse, Trouble, all_finite, feedback, first_finite
from capax.agents.fitting import fit
from capax.agents.ready import Ready
from capax.agents.start import uniform
from capax.checks import above_0, settle, whole
from capax.cores import everywhere, shared_out
from capax.errors import InputError
from capax.flags import margins
from capax.frames import Frames, Seen
from capax.kappa import Feedback, Rule
from capax.lanes import once, shared
from capax.mirror import Mirror
from capax.models import imagine, rssm
from capax.models.rssm import RSSM, Belief, RSSMSettings
from capax.planning.ccem import CEM, plan
from capax.types import Episode, Key, Metrics, Spec

AT_ONCE = 10
"""Episodes that a fit makes its gradient steps for, each, at most: a first one, after a random start, has several."""


@dataclass(frozen=True)
class PlanetSettings:
    """What the agent is made of; the sizes are PlaNet's and the paper's, but for what docs/deviations.md names."""

    rssm: RSSMSettings = field(default_factory=RSSMSettings)
    cem: CEM = field(
        default_factory=lambda: CEM(horizon=12, iterations=10, population=1000, elites=100, smoothing=0.0, spread=1.0)
    )
    start_steps: int = 5000
    """Random steps before the first fit (paper: 5 episodes)."""
    buffer: int = 1_000_000
    """Steps that are remembered."""
    gamma: float = 0.99
    """Discount of a frame, in discounted sums."""

    def __post_init__(self) -> None:
        if not isinstance(self.rssm, RSSMSettings) or not isinstance(self.cem, CEM):
            raise InputError("rssm and cem are settings of their own: give RSSMSettings(...) and CEM(...).")
        settle(self, partial(whole, least=2), "start_steps", "buffer")
        settle(self, above_0(0.999999), "gamma")
        if self.rssm.chunk > self.buffer:
            raise InputError(f"buffer is {self.buffer}, less than chunk, {self.rssm.chunk}: give at least that many.")


class PlanetState(NamedTuple):
    """What the agent remembers from episode to episode."""

    model: RSSM
    optimiser: Any
    fits: int
    """Fits so far; before the first, the agent acts at random."""
    binary: bool
    """Every cost seen was 0 or 1."""
    buffer: Frames
    rule: Any
    good: RSSM | None = None
    """Parameters of the fit before: used where the present ones fail."""
    trouble: Trouble = Trouble()


class Carried(NamedTuple):
    """What an episode carries from step to step."""

    belief: Belief
    action: Any
    """The last one."""
    purse: Purse = Purse()


def together(image: Any, terms: Sequence[float]) -> Any:
    """An image and some numbers in one piece: one copy to the device."""
    return np.concatenate([image.ravel(), np.array(terms, np.float32).view(np.uint8)])


def apart(told: Any, image: tuple[int, int, int]) -> tuple[Any, Any]:
    """The same, on the device."""
    pixels, terms = jnp.split(told, [math.prod(image)])
    return pixels.reshape(image), jax.lax.bitcast_convert_type(terms.reshape(-1, 4), jnp.float32)


@once
def stepping(settings: PlanetSettings, image_shape: tuple[int, int, int], action_dim: int) -> tuple[Any, Any]:
    """What makes a model ready, and what sees an image and plans; compiled once for all agents of these sizes."""
    draw = partial(imagine.drawn, horizon=settings.cem.horizon, action_dim=action_dim, settings=settings.rssm)
    rollout = shared_out(partial(imagine.imagined, settings=settings.rssm))

    def step(key: Key, model: Any, told: Any, carry: Any) -> Any:
        (net, params), (belief, last), (image, (kappa, limit, binary)) = model, carry, apart(told, image_shape)
        k_filter, k_plan = jr.split(key)
        embedded = rssm.see(net, rssm.quantised(image) + 0.5 / rssm.GREYS)
        noise = jr.normal(k_filter, (settings.rssm.stoch,))
        belief, _, _ = rssm.filtered(net, belief, last, embedded, noise, min_sd=settings.rssm.min_sd)
        nothing = jnp.zeros((settings.cem.horizon, action_dim))
        start = imagine.begun(params, belief, settings.cem.widest, settings.rssm)
        asked = params, start, nothing, kappa, limit, binary > 0.0
        chosen, _, info = plan(k_plan, *asked, rollout=rollout, cem=settings.cem, draw=draw)
        return jnp.concatenate([chosen[0], jnp.stack(info)]), (belief, chosen[0])

    ready = jax.jit(lambda net: (rssm.seeing(net), imagine.ready(net, settings.rssm)))
    return lambda net: everywhere(ready(net)), shared(jax.jit(step))


@dataclass(frozen=True)
class Planet:
    """CAP with a latent model (Algorithm 1 with the binary cost of section 4.3)."""

    spec: Spec
    rule: Rule
    image: tuple[int, int, int]
    action_dim: int
    settings: PlanetSettings
    capacity: int | None = None
    """Steps that the run is to have, for which a GPU keeps room; None: all that the buffer may hold."""

    @cached_property
    def _mirror(self) -> Mirror:
        return Mirror(self.capacity or self.settings.buffer, self.settings.rssm.chunk)

    @cached_property
    def _ready(self) -> Ready:
        return Ready(stepping(self.settings, self.image, self.action_dim)[0])

    @cached_property
    def _decode(self) -> Any:
        return jax.jit(lambda net, belief: rssm.decode(net, belief.feature[None])[0])

    def init(self, key: Key) -> PlanetState:
        model = rssm.init(key, self.image[-1], self.action_dim, self.settings.rssm)
        return PlanetState(model, rssm.optimiser(self.settings.rssm).init(model), 0, True, Frames(()), self.rule.init())

    def like(self, key: Key) -> PlanetState:
        """A state with the classes and shapes of every one that this agent comes to have."""
        blank = self.init(key)
        none = np.zeros(0, np.float32)
        seen = Seen(np.zeros((1, *self.image), np.uint8), np.zeros((0, self.action_dim), np.float32), none, none)
        return blank._replace(buffer=Frames((seen,)), good=blank.model)

    def begin(self, state: PlanetState) -> Carried:
        return Carried(*everywhere((rssm.start((), self.settings.rssm), jnp.zeros(self.action_dim))))

    def act(self, state: PlanetState, carry: Carried, obs: Any, key: Key) -> tuple[Any, Carried, Metrics]:
        """See the image, then take the first action of the best plan within the limit."""
        if state.fits == 0:
            return np.asarray(uniform(key, self.action_dim)), carry, {}
        per_step = self.spec.limit / self.spec.scale
        if not state.binary:
            per_step = self.rule.allowed(per_step, carry.purse.left(self.spec))
        beyond, worth = carry.purse.spent - self.spec.limit, self.spec.worth(carry.purse.steps)
        kappa = self.rule.careful(state.rule, beyond, worth)
        (_, step), last = stepping(self.settings, self.image, self.action_dim), (carry.belief, carry.action)
        told = together(obs, [kappa, per_step, state.binary])

        def planned(net: RSSM) -> Any:
            return lambda: step(key, self._ready(net), told, last)

        good = None if state.good is None else planned(state.good)
        plans = planned(state.model), good
        action, (belief, taken), said = first_finite(plans, lambda: (np.asarray(carry.action), last), self.action_dim)
        with_terms = {**said, "plan_kappa": float(kappa), "plan_limit": float(per_step)}
        return action, carry._replace(belief=belief, action=taken), with_terms

    def paid(self, carry: Carried, cost: float) -> Carried:
        """With what the last step cost."""
        return carry._replace(purse=carry.purse.after(self.spec, cost))

    def learn(self, state: PlanetState, episodes: Sequence[Episode], key: Key) -> tuple[PlanetState, Metrics]:
        """Remember what is new, then train on sequences of all that was seen."""
        settings, buffer, binary = self.settings.rssm, state.buffer, state.binary
        for episode in episodes:
            buffer = buffer.add(episode, self.settings.buffer)
            binary = binary and bool(np.isin(episode.cost, (0.0, 1.0)).all())
        rule = state.rule if binary == state.binary else self.rule.init()  # logits became costs: other units
        state = state._replace(buffer=buffer, binary=binary, rule=rule)
        k_draw, k_update = jr.split(key)
        rng = np.random.default_rng(np.asarray(jr.key_data(k_draw)))
        model, optimiser = state.model, state.optimiser
        for number in range(min(AT_ONCE, max(1, len(episodes)))):
            pieces = buffer.pick(rng, (settings.updates, settings.batch), settings.chunk)
            k_fit = jr.fold_in(k_update, number)
            model, optimiser, parts, seen = fit(model, optimiser, self._mirror, buffer, pieces, binary, k_fit, settings)
        losses = {f"loss_{name}": float(part) for name, part in parts._asdict().items()}
        loss = sum(losses.values())
        if not (np.isfinite(loss) and all_finite(model)):
            trouble = state.trouble.bad_fit(settings.learning_rate)
            return state._replace(trouble=trouble), {"bad_fits": trouble.fits}
        good = None if state.fits == 0 else state.model
        trouble = state.trouble._replace(fits=0)
        rule = self.rule.fitted(rule, margins(*map(np.asarray, seen))) if binary else rule
        fitted = dict(rule=rule, model=model, optimiser=optimiser, fits=state.fits + 1, good=good, trouble=trouble)
        return state._replace(**fitted), {"model_loss": loss, **losses}

    def adapt(self, state: PlanetState, episode: Episode) -> tuple[PlanetState, Metrics]:
        """Let what was paid, beside what was planned, move κ."""
        trouble = state.trouble.after(episode)
        learned, told = self.feedback(state, episode)
        rule = self.rule.update(state.rule, learned)
        used = {"kappa": float(state.rule.kappa), **self.rule.report(state.rule)}
        return state._replace(rule=rule, trouble=trouble), {**used, **told, "kappa_next": float(rule.kappa)}

    def feedback(self, state: PlanetState, episode: Episode) -> tuple[Feedback, Metrics]:
        """What the rule learns from an episode."""
        return feedback(self.spec, state.binary, episode)

    def seen(self, state: PlanetState, carry: Carried) -> Any:
        """What the agent believes to see: the image decoded from its belief, uint8."""
        picture = np.asarray(self._decode(state.model, carry.belief))
        return np.clip((picture + 0.5) * 256.0, 0.0, 255.0).astype(np.uint8)
