"""An agent's state as JSON and arrays, and back: it is restored against an example of what it should be.

The file names no class. `restore` walks an example state and takes the classes, shapes and types from there, so nothing that
a file says decides what is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from numpy import ndarray as Array

from capax.core.checks import error_text, one_line, short_repr
from capax.core.contracts import Agent, GrowingBuffer
from capax.core.errors import Damaged, InputError
from capax.core.types import AnyNumber, Episode, Key
from capax.runs.archive import NAMES
from capax.runs.config import RunConfig

LONGEST_WORD = 64
"""Characters of a text in a state, such as a solver's status."""
MAX_WHOLE = 2**63 - 1
"""Whole numbers of a state are smaller: any arithmetic can hold them."""


class StateLike(NamedTuple):
    """What a state of an agent looks like."""

    example: Any
    """With all parts filled in."""
    initial: Any
    """Before any data. A part that is None here may be None in a file."""


class StateReader(NamedTuple):
    """What a state is restored from, beside its JSON."""

    arrays: Mapping[str, Array]
    buffer: Callable[[int, int], Any]
    """The buffer that held so many steps when so many had been added."""


def state_like(agent: Agent[Any], key: Key) -> StateLike:
    """What the states of an agent look like."""
    initial = agent.init(key)
    return StateLike(agent.example(initial), initial)


def field_names(value: Any) -> tuple[str, ...]:
    """The fields of a NamedTuple or a module; none for other values."""
    if isinstance(value, tuple):
        return tuple(getattr(value, "_fields", ()))
    return tuple(field.name for field in fields(value)) if is_dataclass(value) else ()


def has_fields(value: Any) -> bool:
    """Whether it is a NamedTuple (which may have no field) or a module."""
    return hasattr(type(value), "_fields") or is_dataclass(value)


def flatten(value: Any, arrays: dict[str, Array]) -> Any:
    """JSON for a state. Its arrays are put into `arrays`, named by their place there.

    A buffer is only described: its rows are kept in a log, which grows.
    """
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, jax.Array | np.generic):
        return _flat_array(np.asarray(value), arrays)
    if isinstance(value, np.ndarray):
        return _flat_array(value, arrays)
    if sp.issparse(value):
        csr = sp.csr_array(value)
        parts = [flatten(part, arrays) for part in (csr.data, csr.indices, csr.indptr)]
        return {"csr": parts, "shape": [int(n) for n in csr.shape]}
    if isinstance(value, GrowingBuffer):
        return {"buffer": {"size": value.size, "added": value.added}}
    if has_fields(value):
        return {"fields": {name: flatten(getattr(value, name), arrays) for name in field_names(value)}}
    if type(value) in (tuple, list):
        return {"items": [flatten(item, arrays) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": {str(key): flatten(item, arrays) for key, item in value.items()}}
    raise TypeError(
        f"a state cannot hold a {type(value).__name__}: use numbers, arrays, tuples, NamedTuples and modules."
    )


def _flat_array(value: Array, arrays: dict[str, Array]) -> dict[str, Any]:
    name = f"{len(arrays)}"
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    stored = value.T if order == "F" else value
    arrays[name] = stored if stored.dtype in NAMES else stored.astype(stored.dtype.newbyteorder("<"))
    return {"array": name, "order": order}


def restore(payload: Any, like: StateLike, reader: StateReader, where: str = "state") -> Any:
    """The state that JSON and arrays stand for; `Damaged` for anything that is not like the example."""
    try:
        return _restore(payload, like.example, like.initial, reader, where)
    except (Damaged, InputError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise Damaged(f"its {where} does not fit this run, {error_text(error)}") from None


def _restore(payload: Any, example: Any, initial: Any, reader: StateReader, where: str) -> Any:
    if payload is None and (example is None or initial is None):
        return None
    if example is None or payload is None:
        raise Damaged(f"its {where} is {'filled' if example is None else 'empty'}, which this run's is not")
    if isinstance(example, GrowingBuffer):
        size, added = (_count(payload["buffer"][name]) for name in ("size", "added"))
        buffer = reader.buffer(size, added)
        if buffer.size and buffer.layout != example.layout:
            own, rows = example.layout, buffer.layout
            name = next(name for name in [*own, *rows] if own.get(name) != rows.get(name))
            raise Damaged(
                f"its {where} has rows of {short_repr(rows.get(name))} in {short_repr(name)}, this run's have "
                f"{short_repr(own.get(name))}"
            )
        return buffer
    if isinstance(example, AnyNumber):
        return tuple(
            _restore(item, example.item, example.item, reader, f"{where}[{number}]")
            for number, item in enumerate(payload["items"])
        )
    if isinstance(example, jax.Array | np.ndarray):
        array = _array(payload, reader)
        if array.shape != example.shape or array.dtype != example.dtype:
            raise Damaged(
                f"its {where} is {array.dtype}{list(array.shape)}, this run's {example.dtype}{list(example.shape)}"
            )
        return jnp.asarray(array) if isinstance(example, jax.Array) else array
    if sp.issparse(example):
        return _sparse(payload, example.shape, reader, where)
    if isinstance(example, bool | int | float | np.generic):
        return _number(payload, reader, where)
    if isinstance(example, str):
        return _word(payload, where)
    if has_fields(example):
        names, parts = field_names(example), payload["fields"]
        if set(parts) != set(names):
            raise Damaged(f"its {where} has the fields {_listed(parts)}, this run's {_listed(names)}")
        before = initial if type(initial) is type(example) else example
        values = {
            name: _restore(parts[name], getattr(example, name), getattr(before, name), reader, f"{where}.{name}")
            for name in names
        }
        return type(example)(**values)
    if isinstance(example, tuple | list):
        items = payload["items"]
        if all(isinstance(item, bool | int | float | np.generic) for item in example):  # numbers, as many as there are
            return type(example)(_number(item, reader, f"{where}[{number}]") for number, item in enumerate(items))
        if len(items) != len(example):
            raise Damaged(f"its {where} has {len(items)} parts, this run's {len(example)}")
        firsts = initial if isinstance(initial, tuple | list) and len(initial) == len(example) else example
        return type(example)(
            _restore(item, one, first, reader, f"{where}[{number}]")
            for number, (item, one, first) in enumerate(zip(items, example, firsts, strict=True))
        )
    raise TypeError(f"an example state cannot hold a {type(example).__name__}.")


def restore_episode(payload: Any, reader: StateReader, config: RunConfig) -> Episode:
    """An episode of the run that the agent has not learned from yet."""
    try:
        parts = payload["fields"]
        if set(parts) != set(Episode._fields):
            raise Damaged(f"an episode in it has the fields {_listed(parts)}")
        columns = {name: _array(parts[name], reader) for name in Episode._fields[:5]}
        columns["terminated"] = _array(parts["terminated"], reader)
        extras = {str(name): _array(value, reader) for name, value in parts["extras"]["dict"].items()}
        frames = None if parts["frames"] is None else _array(parts["frames"], reader)
        numbers = {name: _number(parts[name], reader, name) for name in ("earned", "paid")}
        flags = {name: _flag(parts[name]) for name in ("random", "truncated")}
        every = [*columns.values(), *extras.values(), *([] if frames is None else [frames])]
        if len({len(column) for column in every}) != 1 or not len(columns["reward"]):
            raise Damaged("an episode in it has arrays of different lengths")
        _check_columns(columns, config)
    except Damaged:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise Damaged(f"it holds no episode, {error_text(error)}") from None
    episode: dict[str, Any] = {**columns, **numbers, **flags, "extras": extras, "frames": frames}
    return Episode(**episode)


def _check_columns(columns: Mapping[str, Array], config: RunConfig) -> None:
    """Refuse an episode whose observations or actions are not those of the run's task."""
    finite = config.kind == "finite"
    obs_size = math.prod(config.image) if config.image is not None else 1 if finite else config.obs_dim
    action_size = 1 if finite else config.action_box.size
    sizes = {"obs": obs_size, "next_obs": obs_size, "action": action_size}
    for name, column in columns.items():
        if math.prod(column.shape[1:]) != sizes.get(name, 1):
            raise Damaged(f"an episode in it has {name} of shape {list(column.shape)}, which the run's task has not")
    if finite:  # what is counted with them is not checked again
        for name, count in (("obs", config.states), ("next_obs", config.states), ("action", config.actions)):
            column = columns[name]
            if column.dtype.kind not in "iu" or column.min() < 0 or column.max() >= (count or 0):
                raise Damaged(f"an episode in it has {name} that are not among {count}")


def _listed(names: Any) -> str:
    """Names for a message: on one line, and cut off where there are many."""
    return one_line(", ".join(sorted(map(str, names))), 160)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise Damaged(f"a count in it is {short_repr(value, 40)}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Damaged("a flag in it is not true or false")
    return value


def _word(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.isidentifier() or len(value) > LONGEST_WORD:
        raise Damaged(f"its {where} is not a plain word")
    return value


def _number(payload: Any, reader: StateReader, where: str) -> Any:
    if isinstance(payload, bool | int | float):
        if isinstance(payload, int) and abs(payload) > MAX_WHOLE:
            raise Damaged(f"its {where} is {short_repr(payload, 40)}")
        return payload
    if "float" in payload:
        return float(payload["float"])
    array = _array(payload, reader)
    if array.shape != ():
        raise Damaged(f"its {where} is no number")
    return array[()]


def _array(payload: Any, reader: StateReader) -> Array:
    array = reader.arrays[payload["array"]]
    return array.T if payload["order"] == "F" else array


def _sparse(payload: Any, shape: tuple[int, ...], reader: StateReader, where: str) -> Any:
    """A sparse matrix whose indices lie within its shape: what reads it does not check them."""
    data, indices, indptr = (_array(part, reader) for part in payload["csr"])
    rows, columns = shape
    sound = (
        tuple(payload["shape"]) == shape
        and data.ndim == indices.ndim == indptr.ndim == 1
        and data.dtype == np.float64
        and indices.dtype.kind == indptr.dtype.kind == "i"
        and len(data) == len(indices)
        and len(indptr) == rows + 1
        and indptr[0] == 0
        and indptr[-1] == len(data)
        and bool((indptr[1:] >= indptr[:-1]).all())  # a difference of large numbers would overflow
        and (len(indices) == 0 or (indices.min() >= 0 and indices.max() < columns))
    )
    if not sound:
        raise Damaged(f"its {where} is no sparse matrix of shape {shape}")
    return sp.csr_array((data, indices, indptr), shape=shape)


def buffer_of(value: Any) -> Any:
    """The buffer within a state, or None."""
    if isinstance(value, GrowingBuffer):
        return value
    parts = value if isinstance(value, tuple) else ()
    return next((buffer for part in parts if (buffer := buffer_of(part)) is not None), None)
