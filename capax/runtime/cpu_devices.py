"""Two CPU devices in one process, so that a plan uses two cores: each imagines half of its candidates.

XLA does not split the products of a small plan, which have few rows, and leaves all cores but one idle. `claim` makes
JAX see a CPU with two or more cores as two devices. Nothing is split where there is a GPU, where JAX was used before
`claim`, or where the user has chosen one device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SHARES = 2


def core_count() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def claim() -> None:
    """Make JAX see `SHARES` CPU devices. Safe to call again.

    Nothing changes if JAX was used before, if there is one core, or if the user has chosen a number of devices.
    """
    chosen_by_user = jax.config.values["jax_num_cpu_devices"] > 0 or "host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    )
    if core_count() >= SHARES and not chosen_by_user:
        with suppress(RuntimeError):  # JAX was used before
            jax.config.update("jax_num_cpu_devices", SHARES)


def mesh() -> Mesh | None:
    """The CPU devices that share the work, or None if there is only one, or a GPU."""
    if jax.default_backend() != "cpu" or len(jax.devices()) < SHARES:
        return None
    return Mesh(np.array(jax.devices()[:SHARES]), ("share",))


def device_kind() -> str:
    """The device that computes, in words: "cpu", "cpu in 2 shares" or the name of a GPU."""
    name = jax.devices()[0].device_kind
    return name if mesh() is None else f"{name} in {SHARES} shares"


def replicate(tree: Any) -> Any:
    """The same tree on all devices that share the work."""
    devices = mesh()
    return tree if devices is None else jax.device_put(tree, NamedSharding(devices, PartitionSpec()))


def split_candidates(rollout: Callable[..., Any], each: Callable[[Any, int], Any] | None = None) -> Callable[..., Any]:
    """The same rollout with its candidates split between the devices. Its parameters come from `replicate`.

    All candidates share the last argument, the key; or `each(key, count)` makes a row of it for each of them.
    """
    devices = mesh()
    if devices is None:
        return rollout if each is None else lambda *inputs: rollout(*inputs[:3], each(inputs[3], len(inputs[2])))
    whole, split = PartitionSpec(), PartitionSpec("share")
    of_key = whole if each is None else split
    sharded = jax.shard_map(
        rollout, mesh=devices, in_specs=(whole, whole, split, of_key), out_specs=split, check_vma=False
    )

    @wraps(rollout)
    def split_rollout(params: Any, start: Any, actions: Any, key: Any) -> Any:
        padded = jnp.pad(actions, ((0, -len(actions) % SHARES), (0, 0), (0, 0)))
        last = key if each is None else each(key, len(padded))
        return jax.tree.map(lambda part: part[: len(actions)], sharded(params, start, padded, last))

    return split_rollout
