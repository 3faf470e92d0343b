"""How are the arrays of an agent's state kept in a file that holds nothing but arrays?"""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from capax.errors import InputError
from capax.runs import folder

T = TypeVar("T")


def save(path: Path, tree: Any) -> None:
    """Write the leaves of a tree, by their names in it, into an .npz file that appears whole or not at all."""
    leaves = {jax.tree_util.keystr(name): np.asarray(leaf) for name, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    file = io.BytesIO()
    np.savez(file, **leaves)  # type: ignore[arg-type]
    folder.write(path, file.getvalue())


def load(path: Path, like: T) -> T:
    """The tree that was saved; `like` has its structure, shapes and types."""
    names, structure = jax.tree_util.tree_flatten_with_path(like)
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:  # numpy leaves a damaged file open
            leaves = [file[jax.tree_util.keystr(name)] for name, _ in names]
    except FileNotFoundError:
        raise InputError(f"{path} is not there: the run has not learned a policy yet.") from None
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path} does not hold this run's policy ({error}): it was damaged, so train anew.") from None
    for (name, leaf), read in zip(names, leaves, strict=True):
        if np.shape(leaf) != read.shape or np.asarray(leaf).dtype != read.dtype:
            raise InputError(
                f"{path} has {read.shape} at {jax.tree_util.keystr(name)}, not {np.shape(leaf)}: train anew."
            )
    return jax.tree_util.tree_unflatten(
        structure, [leaf if leaf.dtype == np.float64 else jnp.asarray(leaf) for leaf in leaves]
    )
