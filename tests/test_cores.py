"""Do two cores imagine what one does, and only where nobody has decided otherwise?"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from capax import cores
from capax.models import ensemble
from capax.models.ensemble import EnsembleSettings
from capax.planning.ccem import Imagined
from capax.workload import made_up, transitions

TWO = pytest.mark.skipif(cores.available() < cores.SHARES, reason="there is one core")


def seen(before: str = "", **variables: str) -> list[str]:
    """How many devices a process of its own shares its work out to, and what it says of them."""
    code = f"{before}\nfrom capax import cores; print(0 if cores.mesh() is None else cores.mesh().size, cores.kind())"
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**own, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(maxsplit=1)


@TWO
def test_two_devices_share_the_work():
    assert seen() == ["2", "cpu in 2 shares\n"]


@TWO
@pytest.mark.parametrize(
    ("before", "variables", "shares"),
    [
        ("import jax; jax.devices()", {}, "0"),  # it is too late
        ("", {"JAX_NUM_CPU_DEVICES": "1"}, "0"),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, "2"),  # of three
        ("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", {}, "0"),
    ],
)
def test_unless_something_speaks_against_it(before, variables, shares):
    assert seen(before, **variables)[0] == shares


@TWO
@pytest.mark.parametrize("candidates", [1, 2, 7])
def test_each_imagines_its_own_candidates(candidates):
    here = set()

    def rollout(params, start, actions, key):
        here.add(len(actions))
        noise = jr.normal(key, (actions.shape[1],))  # the same for all
        told = params * actions[:, None, :, 0] + start + noise
        return Imagined(told, 2.0 * told, jnp.abs(told), jnp.ones_like(told))

    actions = jr.normal(jr.key(0), (candidates, 4, 2)).at[0, 1, 0].set(jnp.nan)
    asked = cores.everywhere(jnp.float32(3.0)), jnp.float32(0.5), actions, jr.key(1)
    shared, alone = jax.jit(cores.shared_out(rollout))(*asked), rollout(*asked)
    assert min(here) == -(-candidates // 2)
    for ours, theirs in zip(shared, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, equal_nan=True)
    assert np.isnan(shared.reward).sum() == 1  # what one cannot imagine harms no other


@TWO
def test_an_ensemble_imagines_the_same():
    settings = EnsembleSettings(hidden=20, layers=3, particles=5)
    params = made_up(ensemble.init, 17, 6, settings), ensemble.scaling(transitions(100))
    asked = jnp.zeros(17), jr.uniform(jr.key(1), (9, 6, 6), minval=-1.0), jr.key(2)
    alone = jax.jit(partial(ensemble.rollout, settings=settings))(params, *asked)
    ready, rollout = ensemble.imagination(settings, 17, 6)
    shared = jax.jit(rollout)(ready(params), *asked)
    assert float(alone.reward.std()) > 1e-3
    for ours, theirs in zip(shared, alone, strict=True):
        assert len(ours.sharding.device_set) == cores.SHARES
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
