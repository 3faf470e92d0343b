"""Two CPU devices imagine what one does, and are used only if nothing prevents it."""

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

from capax.cli.bench_work import random_params, transitions
from capax.core.types import Imagined
from capax.models import ensemble
from capax.models.ensemble import EnsembleSettings
from capax.runtime import cpu_devices

TWO_CORES = pytest.mark.skipif(cpu_devices.core_count() < cpu_devices.SHARES, reason="there is one core")


def mesh_size_and_kind(before: str = "", **variables: str) -> list[str]:
    """The size of the mesh (0 without one) and the kind of device in a new process that runs `before` first."""
    lines = before, "from capax.runtime import cpu_devices as cpu", "cpu.claim()", "devices = cpu.mesh()"
    code = "\n".join((*lines, "print(0 if devices is None else devices.size, cpu.device_kind())"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **variables}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(maxsplit=1)


@TWO_CORES
def test_two_devices_share_the_work():
    assert mesh_size_and_kind() == ["2", "cpu in 2 shares\n"]


@TWO_CORES
@pytest.mark.parametrize(
    ("before", "variables", "size"),
    [
        ("import jax; jax.devices()", {}, "0"),  # JAX was used before
        ("", {"JAX_NUM_CPU_DEVICES": "1"}, "0"),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, "2"),  # two of three
        ("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", {}, "0"),
    ],
)
def test_work_is_not_shared_after_use_of_jax_on_one_core_or_against_the_users_choice(before, variables, size):
    assert mesh_size_and_kind(before, **variables)[0] == size


@TWO_CORES
@pytest.mark.parametrize("candidates", [1, 2, 7])
def test_each_device_imagines_its_own_candidates(candidates):
    sizes = set()

    def rollout(params, start, actions, key):
        sizes.add(len(actions))
        noise = jr.normal(key, (actions.shape[1],))  # the same for all candidates
        reward = params * actions[:, None, :, 0] + start + noise
        return Imagined(reward, 2.0 * reward, jnp.abs(reward), jnp.ones_like(reward))

    actions = jr.normal(jr.key(0), (candidates, 4, 2)).at[0, 1, 0].set(jnp.nan)
    arguments = cpu_devices.replicate(jnp.float32(3.0)), jnp.float32(0.5), actions, jr.key(1)
    shared, alone = jax.jit(cpu_devices.split_candidates(rollout))(*arguments), rollout(*arguments)
    assert min(sizes) == -(-candidates // 2)
    for split, whole in zip(shared, alone, strict=True):
        np.testing.assert_allclose(split, whole, rtol=1e-6, equal_nan=True)
    assert np.isnan(shared.reward).sum() == 1  # a candidate that is NaN does not affect the others


@TWO_CORES
def test_an_ensemble_imagines_the_same_on_two_devices():
    settings = EnsembleSettings(hidden=20, layers=3, particles=5)
    params = random_params(ensemble.init, 17, 6, settings), ensemble.scaling(transitions(100))
    inputs = jnp.zeros(17), jr.uniform(jr.key(1), (9, 6, 6), minval=-1.0), jr.key(2)
    alone = jax.jit(partial(ensemble.rollout, settings=settings))(params, *inputs)
    prepare, rollout = ensemble.build_rollout(settings, 17, 6)
    shared = jax.jit(rollout)(prepare(params), *inputs)
    assert float(alone.reward.std()) > 1e-3
    for split, whole in zip(shared, alone, strict=True):
        assert len(split.sharding.device_set) == cpu_devices.SHARES
        np.testing.assert_allclose(split, whole, rtol=1e-5, atol=1e-6)
