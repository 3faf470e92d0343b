"""How does a plan use two cores of a CPU? Two devices of this process imagine half of its candidates each.

XLA cuts products of so few rows as a small plan has into no parts, and leaves all cores but one idle. Importing this has JAX
see a CPU with two cores or more as two devices, unless JAX was used before, or the user has said how many it should see:
then, and where there is a GPU, candidates are imagined at once.
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


def available() -> int:
    """Cores for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def claim() -> None:
    """Have JAX see as many devices as there are shares, if it has not looked yet and nobody has decided."""
    decided = jax.config.values["jax_num_cpu_devices"] > 0 or "host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    )
    if available() >= SHARES and not decided:
        with suppress(RuntimeError):  # it has
            jax.config.update("jax_num_cpu_devices", SHARES)


claim()


def mesh() -> Mesh | None:
    """The devices that share the work; None where there is one, or a GPU."""
    if jax.default_backend() != "cpu" or len(jax.devices()) < SHARES:
        return None
    return Mesh(np.array(jax.devices()[:SHARES]), ("share",))


def kind() -> str:
    """What computes here, in words."""
    name = jax.devices()[0].device_kind
    return name if mesh() is None else f"{name} in {SHARES} shares"


def everywhere(tree: Any) -> Any:
    """On all devices that share the work."""
    devices = mesh()
    return tree if devices is None else jax.device_put(tree, NamedSharding(devices, PartitionSpec()))


def shared_out(rollout: Callable[..., Any]) -> Callable[..., Any]:
    """The same rollout, with each device imagining its share of the candidates; parameters are `everywhere`."""
    devices = mesh()
    if devices is None:
        return rollout
    whole, split = PartitionSpec(), PartitionSpec("share")
    apart = jax.shard_map(
        rollout, mesh=devices, in_specs=(whole, whole, split, whole), out_specs=split, check_vma=False
    )

    @wraps(rollout)
    def shares(params: Any, start: Any, actions: Any, key: Any) -> Any:
        more = jnp.pad(actions, ((0, -len(actions) % SHARES), (0, 0), (0, 0)))
        return jax.tree.map(lambda part: part[: len(actions)], apart(params, start, more, key))

    return shares
