"""Plans and fits for measurements, with random parameters and data of real sizes, and the number of operations of a plan."""

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
from capax.agents.pets import Pets, PetsSettings, PetsState, compiled_plan
from capax.agents.planet import Planet, PlanetSettings, PlanetState, compiled_step, packed_inputs
from capax.core.types import Spec
from capax.data.image_episodes import ImageBuffer, ImageEpisode
from capax.data.transitions import TransitionBuffer
from capax.kappa.conformal import Conformal
from capax.models import ensemble, rssm
from capax.models.layers import product_dtype
from capax.runtime.lanes import call_vmapped

STATES, ACTIONS = 17, 6
"""Numbers of an observation and of an action of HalfCheetah."""
IMAGE, CONTROLS = (64, 64, 3), 3
"""Shape of an image and numbers of an action of Car-Racing."""
SPEC = Spec(100.0, 0.99)


class Work(NamedTuple):
    """The arithmetic of one plan."""

    evaluations: int
    """Steps that the model imagines: candidates × particles × horizon, over all rounds."""
    flops: Mapping[str, int]
    """Floating-point operations of the matrix products in each type."""

    def floor(self, tflops: Mapping[str, float]) -> float:
        """Seconds of the products at these rates."""
        return sum(flops / (1e12 * tflops[kind]) for kind, flops in self.flops.items())


def dense(*widths: int) -> int:
    """FLOPs of one row through layers of these widths: a product and a sum for each weight."""
    return 2 * sum(i * o for i, o in pairwise(widths))


def states_work(settings: PetsSettings, obs_dim: int = STATES, action_dim: int = ACTIONS) -> Work:
    """The arithmetic of a plan with the ensemble."""
    net, cem = settings.ensemble, settings.cem
    evaluations = cem.evaluations * net.particles * cem.horizon
    per_row = dense(obs_dim + action_dim, *[net.hidden] * net.layers, 2 * (obs_dim + 2) + 1)
    return Work(evaluations, {product_dtype(net.products): evaluations * per_row * (1 + net.members * net.exact)})


def images_work(settings: PlanetSettings, action_dim: int = CONTROLS) -> Work:
    """The arithmetic of a plan with the image model; encoding the image before the plan is not counted."""
    net, cem = settings.rssm, settings.cem
    H, S, U, A = net.deter, net.stoch, net.hidden, action_dim
    transition = dense(S + A, H) + 2 * dense(H, 3 * H) + dense(H, U, 2 * S)
    heads = 2 * dense(H + S, U, U, 1)
    members = net.members * (dense(H + A, S) + 2 * dense(S + A, S))
    evaluations = cem.evaluations * cem.horizon
    flops = Counter({"float32": evaluations * members})  # whatever the type of the other products
    flops[product_dtype(net.products)] += evaluations * (transition + heads)
    return Work(evaluations, flops)


def plan_call(function: Any, arguments: tuple[Any, ...], lanes: int = 1) -> Callable[[], Any]:
    """A call of a plan as an agent makes it, or of several plans at once; it returns the actions on the host.

    The first of the arguments is the random key.
    """

    def fetch(*plans: Any) -> list[Any]:
        for plan in plans:
            plan.copy_to_host_async()
        return [np.asarray(plan) for plan in plans]

    if lanes == 1:
        return lambda: fetch(function(*arguments)[0])
    lane_arguments = [(jr.key(lane), *arguments[1:]) for lane in range(lanes)]
    return lambda: fetch(*(results[0] for results in call_vmapped(function.__wrapped__, (), lane_arguments)))


@cache
def states_plan(settings: PetsSettings, lanes: int = 1) -> Callable[[], Any]:
    """A plan with the ensemble, or several in one call."""
    params = random_params(ensemble.init, STATES, ACTIONS, settings.ensemble), ensemble.scaling(transitions(100))
    warm = jnp.zeros((settings.cem.horizon, ACTIONS))
    inputs = np.array([*np.zeros(STATES), 0.1, SPEC.limit / SPEC.scale, np.inf, 4], np.float32)
    prepare, act = compiled_plan(settings, STATES, ACTIONS)
    return plan_call(act, (jr.key(1), prepare(params), inputs, warm), lanes)


def images_plan(settings: PlanetSettings) -> Callable[[], Any]:
    """A plan with the image model."""
    net = random_params(rssm.init, IMAGE[-1], CONTROLS, settings.rssm)
    carry = rssm.initial_belief((), settings.rssm), jnp.zeros(CONTROLS)
    inputs = packed_inputs(image_data(1).episodes[0].image[0], [0.1, 0.0, 1.0])
    prepare, step = compiled_step(settings, IMAGE, CONTROLS)
    return plan_call(step, (jr.key(1), prepare(net), inputs, carry))


def states_fit(settings: PetsSettings, samples: int) -> Callable[[], Any]:
    """A fit of the ensemble to `samples` transitions; it returns the parameters."""
    agent = Pets(SPEC, Conformal(0.02), STATES, ACTIONS, settings, samples)
    net = random_params(ensemble.init, STATES, ACTIONS, settings.ensemble)
    moments = optax.adam(settings.ensemble.learning_rate).init(net)
    state = PetsState(net, moments, None, transitions(samples), 0, agent.rule.init())
    return lambda: agent.learn(state, (), jr.key(1))[0].model


def images_fit(settings: PlanetSettings, steps: int) -> Callable[[], Any]:
    """A fit of the image model to an episode of `steps` steps; it returns the parameters."""
    agent = Planet(SPEC, Conformal(0.4), IMAGE, CONTROLS, settings, steps)
    net = random_params(rssm.init, IMAGE[-1], CONTROLS, settings.rssm)
    state = PlanetState(net, rssm.optimiser(settings.rssm).init(net), 0, True, image_data(steps), agent.rule.init())
    return lambda: agent.learn(state, (), jr.key(1))[0].model


def random_params(init: Any, *arguments: Any) -> Any:
    """Random parameters of the shapes that `init` gives. They are drawn on the host, where nothing is compiled."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: init(key, *arguments), jr.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(0.05 * rng.normal(size=leaf.shape), leaf.dtype), shapes)


def transitions(count: int) -> TransitionBuffer:
    """A buffer of random transitions."""
    rng = np.random.default_rng(0)
    obs, change = rng.normal(size=(2, count, STATES)).astype(np.float32)
    action = rng.uniform(-1.0, 1.0, (count, ACTIONS)).astype(np.float32)
    reward, cost = rng.normal(size=(2, count)).astype(np.float32)
    return TransitionBuffer(obs, action, reward, cost, obs + 0.1 * change, np.zeros(count, np.float32), count)


def image_data(steps: int) -> ImageBuffer:
    """A buffer with one random episode of images."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (steps + 1, *IMAGE), np.uint8)
    actions = rng.uniform(-1.0, 1.0, (steps, CONTROLS)).astype(np.float32)
    return ImageBuffer((ImageEpisode(images, actions, *rng.integers(0, 2, (2, steps)).astype(np.float32)),), steps)
