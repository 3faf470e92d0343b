"""How does a model of images come not to know its frames by heart? It sees them shifted, by other pixels each time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr

from capax.frames import Drawn
from capax.types import Key


def shifted(data: Drawn, key: Key, most: int) -> Drawn:
    """Each sequence's images shifted by up to `most` pixels across and down, all of them alike; edges are repeated."""
    image = jnp.asarray(data.image)
    offset = jr.randint(key, (image.shape[0], 2), 0, 2 * most + 1)
    wide = jnp.pad(image, ((0, 0), (0, 0), (most, most), (most, most), (0, 0)), mode="edge")

    def one(piece: Any, at: Any) -> Any:
        return jax.lax.dynamic_slice(piece, (0, at[0], at[1], 0), image.shape[1:])

    return data._replace(image=jax.vmap(one)(wide, offset))
