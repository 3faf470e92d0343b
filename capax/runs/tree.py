"""How does an agent's state become JSON and arrays, and come back as it was?

A state is made of numbers, arrays, tuples, lists, dicts and the classes of `CLASSES`. Only these are ever made from a
file: a name in it is looked up in that table, never imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.sparse as sp
from numpy import ndarray as Array

from capax.agents.adapting import Trouble
from capax.agents.calibrated import CalibratedState
from capax.agents.onpolicy import OnPolicyState
from capax.agents.pets import PetsState
from capax.agents.planet import PlanetState
from capax.agents.sight import Moments
from capax.agents.tabular import TabularState
from capax.buffer import Buffer
from capax.conformal import ConformalState
from capax.errors import Damaged
from capax.frames import Frames
from capax.kappa import AdamState, DampedState, Kappa
from capax.models.actor import Actor
from capax.models.ensemble import Ensemble, Scaling
from capax.models.layers import GRU, Conv, Dense, Members
from capax.models.rssm import RSSM
from capax.runs.tensors import NAMES
from capax.tabular.counts import CountModel
from capax.tabular.lp import Solution
from capax.types import Episode

CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        Actor,
        AdamState,
        CalibratedState,
        ConformalState,
        CountModel,
        DampedState,
        Conv,
        Dense,
        Ensemble,
        Episode,
        GRU,
        Kappa,
        Members,
        Moments,
        OnPolicyState,
        PetsState,
        RSSM,
        PlanetState,
        Scaling,
        Solution,
        TabularState,
        Trouble,
        optax.EmptyState,
        optax.ScaleByAdamState,
    )
}
LOGGED = (Buffer, Frames)
"""Buffers: what they hold is kept in a log."""
WORDS = ("optimal", "infeasible")
"""The only texts in a state: `Solution.status`."""
DEEPEST = 64
"""Levels of nesting; a state has a handful."""


def fields_of(cls: Any) -> tuple[str, ...]:
    """The names that a NamedTuple or a module is made with."""
    return tuple(cls._fields if hasattr(cls, "_fields") else getattr(cls, "__dataclass_fields__", ()))


def flatten(value: Any, arrays: dict[str, Array]) -> Any:
    """JSON for a state; its arrays are put into `arrays`, named by their place there. A buffer is only described: its rows
    are kept in a log of their own, which grows."""
    if value is None or isinstance(value, bool) or type(value) is int or (isinstance(value, str) and value in WORDS):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, jax.Array):
        return {**_array(np.asarray(value), arrays), "jax": True}
    if isinstance(value, np.generic):
        return {**_array(np.asarray(value), arrays), "scalar": True}
    if isinstance(value, np.ndarray):
        return _array(value, arrays)
    if sp.issparse(value):
        csr = sp.csr_array(value)
        parts = [flatten(part, arrays) for part in (csr.data, csr.indices, csr.indptr)]
        return {"csr": parts, "shape": [int(n) for n in csr.shape]}
    if isinstance(value, LOGGED):
        return {"buffer": {"size": value.size, "added": value.added}}
    name = type(value).__name__
    if CLASSES.get(name) is type(value):
        return {"class": name, "fields": {f: flatten(getattr(value, f), arrays) for f in fields_of(type(value))}}
    if type(value) in (tuple, list):
        return {type(value).__name__: [flatten(item, arrays) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": {str(key): flatten(item, arrays) for key, item in value.items()}}
    raise TypeError(f"a state cannot hold a {type(value).__name__}: add its class to CLASSES.")


def _array(value: Array, arrays: dict[str, Array]) -> dict[str, Any]:
    name = f"{len(arrays)}"
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    stored = value.T if order == "F" else value
    arrays[name] = stored if stored.dtype in NAMES else stored.astype(stored.dtype.newbyteorder("<"))
    return {"array": name, "order": order}


Logged = Callable[[int, int], Any]
"""From a size and a number of transitions ever added to the buffer that had them."""


def unflatten(value: Any, arrays: Mapping[str, Array], logged: Logged, depth: int = 0) -> Any:
    """The state that JSON and arrays stand for; raises `Damaged` for anything that `flatten` would not have written."""
    if depth > DEEPEST:
        raise Damaged("it is nested too deeply")
    if value is None or isinstance(value, bool | int | float) or value in WORDS:
        return value
    try:
        return _unflatten(value, arrays, logged, depth + 1)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise error if isinstance(error, Damaged) else Damaged(f"it holds no state of an agent ({error!r})") from None


def _unflatten(value: Any, arrays: Mapping[str, Array], logged: Logged, depth: int) -> Any:
    if "array" in value:
        array = arrays[value["array"]]
        if value["order"] == "F":
            array = array.T
        if value.get("jax"):
            return jnp.asarray(array)
        return array[()] if value.get("scalar") else array
    if "float" in value:
        return float(value["float"])
    if "buffer" in value:
        return logged(int(value["buffer"]["size"]), int(value["buffer"]["added"]))
    if "csr" in value:
        data, indices, indptr = (unflatten(part, arrays, logged, depth) for part in value["csr"])
        return sp.csr_array((data, indices, indptr), shape=tuple(value["shape"]))
    if "class" in value:
        cls, fields = CLASSES[value["class"]], value["fields"]
        if set(fields) != set(fields_of(cls)):
            raise Damaged(f"its {value['class']} has the fields {', '.join(sorted(fields))}")
        return cls(**{name: unflatten(item, arrays, logged, depth) for name, item in fields.items()})
    if "dict" in value:
        return {key: unflatten(item, arrays, logged, depth) for key, item in value["dict"].items()}
    ((kind, items),) = value.items()
    made = [unflatten(item, arrays, logged, depth) for item in items]
    return {"tuple": tuple, "list": list}[kind](made)


def check(value: Any, like: Any, where: str = "state") -> None:
    """Refuse a state of other classes, shapes or types than `like`; what is None or empty in one of them may differ."""
    if like is None or value is None or (isinstance(like, tuple | list) and not fields_of(type(like)) and not like):
        return
    if isinstance(like, jax.Array | np.ndarray):
        if not isinstance(value, jax.Array | np.ndarray) or value.shape != like.shape or value.dtype != like.dtype:
            got = f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else type(value).__name__
            raise Damaged(f"its {where} is {got}, this run's {like.dtype}{list(like.shape)}")
        return
    if isinstance(like, int | float | np.generic) and isinstance(value, int | float | np.generic):
        return
    if type(value) is not type(like):
        raise Damaged(f"its {where} is of type {type(value).__name__}, this run's {type(like).__name__}")
    if isinstance(like, LOGGED):  # of any length
        if value.size and value.layout != like.layout:
            raise Damaged(f"its {where} has rows of {value.layout}, this run's {like.layout}")
    elif fields_of(type(like)):
        for name in fields_of(type(like)):
            check(getattr(value, name), getattr(like, name), f"{where}.{name}")
    elif isinstance(like, tuple | list):
        if len(value) != len(like):
            raise Damaged(f"its {where} has {len(value)} parts, this run's {len(like)}")
        for number, (one, other) in enumerate(zip(value, like, strict=True)):
            check(one, other, f"{where}[{number}]")


def buffer_of(value: Any) -> Any:
    """The buffer within a state, or None."""
    if isinstance(value, LOGGED):
        return value
    parts = value if isinstance(value, tuple) else ()
    return next((found for part in parts if (found := buffer_of(part)) is not None), None)
