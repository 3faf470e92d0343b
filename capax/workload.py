"""What is a plan or a fit that can be measured? Made-up parameters and data of real sizes, and the arithmetic in a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import capax.envs as _envs  # noqa: F401  registers the environments
from capax.agents.pets import Pets, PetsSettings, PetsState, planning
from capax.agents.planet import Planet, PlanetSettings, PlanetState, stepping, together
from capax.buffer import Buffer
from capax.conformal import Conformal
from capax.frames import Frames, Seen
from capax.lanes import as_one
from capax.models import ensemble, rssm
from capax.models.layers import type_of
from capax.types import Spec

STATES, ACTIONS = 17, 6
"""Of HalfCheetah."""
IMAGE, CONTROLS = (64, 64, 3), 3
"""Of Car-Racing."""
SPEC = Spec(100.0, 0.99)


class Work(NamedTuple):
    """Of one plan."""

    evaluations: int
    """Steps that the model imagines: candidates × particles × horizon, over all rounds."""
    flops: Mapping[str, int]
    """Of the matrix products in each type."""

    def floor(self, tflops: Mapping[str, float]) -> float:
        """Seconds at these rates."""
        return sum(flops / (1e12 * tflops[kind]) for kind, flops in self.flops.items())


def dense(*widths: int) -> int:
    """FLOPs of a row that passes layers of these widths: a product and a sum for each weight."""
    return 2 * sum(i * o for i, o in pairwise(widths))


def states_work(settings: PetsSettings, obs_dim: int = STATES, action_dim: int = ACTIONS) -> Work:
    """Of a plan with the ensemble."""
    net, cem = settings.ensemble, settings.cem
    evaluations = cem.evaluations * net.particles * cem.horizon
    each = dense(obs_dim + action_dim, *[net.hidden] * net.layers, 2 * (obs_dim + 2) + 1)
    return Work(evaluations, {type_of(net.products): evaluations * each * (1 + net.members * net.exact)})


def images_work(settings: PlanetSettings, action_dim: int = CONTROLS) -> Work:
    """Of a plan with the image model; seeing the one image before it is not counted."""
    net, cem = settings.rssm, settings.cem
    H, S, U, A = net.deter, net.stoch, net.hidden, action_dim
    carried = dense(S + A, H) + 2 * dense(H, 3 * H) + dense(H, U, 2 * S)
    heads = 2 * dense(H + S, U, U, 1)
    members = net.members * (dense(H + A, S) + 2 * dense(S + A, S))
    evaluations = cem.evaluations * cem.horizon
    flops = Counter({"float32": evaluations * members})  # whatever the type of the other products
    flops[type_of(net.products)] += evaluations * (carried + heads)
    return Work(evaluations, flops)


def planned(function: Any, arguments: tuple[Any, ...], lanes: int = 1) -> Callable[[], Any]:
    """A plan as an agent has it made, or several in one call, the actions on the host; the first argument is the key."""

    def fetched(*plans: Any) -> list[Any]:
        for plan in plans:
            plan.copy_to_host_async()
        return [np.asarray(plan) for plan in plans]

    if lanes == 1:
        return lambda: fetched(function(*arguments)[0])
    own = [(jr.key(lane), *arguments[1:]) for lane in range(lanes)]
    return lambda: fetched(*(answer[0] for answer in as_one(function.__wrapped__, (), own)))


@cache
def states_plan(settings: PetsSettings, lanes: int = 1) -> Callable[[], Any]:
    params = made_up(ensemble.init, STATES, ACTIONS, settings.ensemble), ensemble.scaling(transitions(100))
    warm = jnp.zeros((settings.cem.horizon, ACTIONS))
    told = np.array([*np.zeros(STATES), 0.1, SPEC.limit / SPEC.scale], np.float32)
    ready, act = planning(settings, STATES, ACTIONS)
    return planned(act, (jr.key(1), ready(params), told, warm), lanes)


def images_plan(settings: PlanetSettings) -> Callable[[], Any]:
    net = made_up(rssm.init, IMAGE[-1], CONTROLS, settings.rssm)
    carry = rssm.start((), settings.rssm), jnp.zeros(CONTROLS)
    told = together(pictures(1).episodes[0].image[0], [0.1, 0.0, 1.0])
    ready, step = stepping(settings, IMAGE, CONTROLS)
    return planned(step, (jr.key(1), ready(net), told, carry))


def states_fit(settings: PetsSettings, samples: int) -> Callable[[], Any]:
    agent = Pets(SPEC, Conformal(0.02), STATES, ACTIONS, settings, samples)
    net = made_up(ensemble.init, STATES, ACTIONS, settings.ensemble)
    memory = optax.adam(settings.ensemble.learning_rate).init(net)
    state = PetsState(net, memory, None, transitions(samples), 0, agent.rule.init())
    return lambda: agent.learn(state, (), jr.key(1))[0].model


def images_fit(settings: PlanetSettings, steps: int) -> Callable[[], Any]:
    agent = Planet(SPEC, Conformal(0.4), IMAGE, CONTROLS, settings, steps)
    net = made_up(rssm.init, IMAGE[-1], CONTROLS, settings.rssm)
    state = PlanetState(net, rssm.optimiser(settings.rssm).init(net), 0, True, pictures(steps), agent.rule.init())
    return lambda: agent.learn(state, (), jr.key(1))[0].model


def made_up(init: Any, *arguments: Any) -> Any:
    """Parameters of the shapes that `init` gives, drawn on the host: compiling its draws takes longer than a plan."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: init(key, *arguments), jr.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(0.05 * rng.normal(size=leaf.shape), leaf.dtype), shapes)


def transitions(count: int) -> Buffer:
    rng = np.random.default_rng(0)
    obs, change = rng.normal(size=(2, count, STATES)).astype(np.float32)
    action = rng.uniform(-1.0, 1.0, (count, ACTIONS)).astype(np.float32)
    reward, cost = rng.normal(size=(2, count)).astype(np.float32)
    return Buffer(obs, action, reward, cost, obs + 0.1 * change, np.zeros(count, np.float32), count)


def pictures(steps: int) -> Frames:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (steps + 1, *IMAGE), np.uint8)
    actions = rng.uniform(-1.0, 1.0, (steps, CONTROLS)).astype(np.float32)
    return Frames((Seen(images, actions, *rng.integers(0, 2, (2, steps)).astype(np.float32)),), steps)
