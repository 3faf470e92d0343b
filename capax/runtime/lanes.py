"""Several runs ("lanes") that share one GPU: each has its own thread, and their compiled calls are batched into one.

A function that is worth batching is wrapped in `batched`. A lane that calls it waits until every other lane waits as
well. Then the calls of the same function are answered by one call under `vmap`. An agent needs nothing else to run in
lanes. One plan alone leaves most of a GPU idle. A CPU has nothing idle: there lanes are trained one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from capax.runtime.signals import Stop, is_closing

SMALL_BYTES = 4096
"""Answers up to this size are copied to the host at once. Arguments up to this size are stacked again in every call."""
MAX_CACHED_BYTES = 2**26
"""A larger argument is not kept twice on the device."""
STOP_TIMEOUT_S = 5.0
"""Seconds that lanes have to end after they are told to stop."""
T = TypeVar("T")
P = ParamSpec("P")
_lane_context = threading.local()
"""Of a lane's thread: `batcher`, `lane` (its number), `label` and `signatures`."""
_build_lock = threading.Lock()


class LaneStopped(Stop):
    """Raised within a lane that has to end."""


class LaneCall(NamedTuple):
    """A call that a lane waits for."""

    function: Callable[..., Any]
    static: tuple[tuple[str, Any], ...]
    arguments: tuple[Any, ...]
    signature: Any
    """Structure, shapes and types of the arguments. Calls whose signatures differ cannot be stacked."""

    @property
    def batch_key(self) -> Any:
        """Calls with the same key can be batched."""
        return self.function, self.static, self.signature


def batched(function: Callable[P, T]) -> Callable[P, T]:
    """Batch the calls that several lanes make of a compiled function. Pass static arguments by name, and only these.

    Do not change an argument in place after a call: the same object is expected to hold the same values.
    """

    @wraps(function)
    def wrapper(*arguments: P.args, **static: P.kwargs) -> T:
        batcher: CallBatcher | None = getattr(_lane_context, "batcher", None)
        if batcher is None:
            return function(*arguments, **static)
        cache, signatures = _lane_context.signatures.setdefault(function, {}), []
        for position, argument in enumerate(arguments):
            if position not in cache or cache[position][0] is not argument:  # parameters stay for a whole episode
                cache[position] = argument, signature_of(argument)
            signatures.append(cache[position][1])
        return batcher.call(LaneCall(function, tuple(sorted(static.items())), arguments, tuple(signatures)))

    return wrapper


def signature_of(argument: Any) -> Any:
    """The structure of an argument, and the shapes and types of its leaves."""
    leaves, structure = jax.tree.flatten(argument)
    return structure, tuple((leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else type(leaf) for leaf in leaves)


def built_once(function: Callable[P, T]) -> Callable[P, T]:
    """Cache a function that builds compiled functions, so that all lanes share one build.

    Calls are batched only if they are calls of the same function object.
    """
    cached: Any = lru_cache(maxsize=16)(function)

    @wraps(function)
    def wrapper(*arguments: P.args, **static: P.kwargs) -> T:
        with _build_lock:
            return cached(*arguments, **static)

    return wrapper


def stop_if_requested() -> None:
    """Raise `LaneStopped` in a lane that has to end. For the parts of a run that make no batched call."""
    batcher: CallBatcher | None = getattr(_lane_context, "batcher", None)
    if batcher is not None and batcher.stopped:
        raise LaneStopped


def lane_count() -> int:
    """The number of lanes that share the device with this thread's run, itself included."""
    batcher: CallBatcher | None = getattr(_lane_context, "batcher", None)
    return 1 if batcher is None else batcher.lanes


def lane_label() -> str | None:
    """The label of the lane that this thread runs, or None outside of lanes."""
    return getattr(_lane_context, "label", None)


def run_lanes(work: Sequence[Callable[[], T]], labels: Sequence[str]) -> list[T]:
    """Run each function in a lane and return the results. An error of a lane is raised after the others have ended."""
    batcher = CallBatcher(len(work))
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(lane: int) -> None:
        _lane_context.batcher, _lane_context.lane = batcher, lane
        _lane_context.label, _lane_context.signatures = labels[lane], {}
        try:
            results[lane] = work[lane]()
        except BaseException as error:
            errors[lane] = error
        finally:
            batcher.leave(lane)

    threads = [threading.Thread(target=run, args=(lane,), name=labels[lane], daemon=True) for lane in range(len(work))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # a signal reaches the main thread between two of these
    except BaseException:
        batcher.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join(STOP_TIMEOUT_S)
            while thread.is_alive() and is_closing():  # its environment parks
                thread.join(0.2)
        raise
    finally:
        _stacked_arguments.clear()
    if errors:
        first, *others = sorted(errors)
        errors[first].add_note(f"in the lane {labels[first]}")
        for lane in others:
            errors[first].add_note(f"in the lane {labels[lane]}: {errors[lane]}")
        raise errors[first]
    return [results[lane] for lane in range(len(work))]


class CallBatcher:
    """Makes lanes wait for each other, and answers their calls in batches."""

    def __init__(self, lanes: int) -> None:
        self.lanes, self.stopped = lanes, False
        self._running = set(range(lanes))
        self._waiting: dict[int, LaneCall] = {}
        self._answers: dict[int, tuple[Any, BaseException | None]] = {}
        self._changed = threading.Condition()

    def call(self, call: LaneCall) -> Any:
        """The result of a call of this thread's lane."""
        lane = _lane_context.lane
        hash(call.batch_key)  # an argument that cannot be compared fails here, in its own lane
        with self._changed:
            self._waiting[lane] = call
            self._answer_batch()
            while lane not in self._answers:
                if self.stopped:
                    raise LaneStopped
                self._changed.wait()
            answer, error = self._answers.pop(lane)
        if error is not None:
            raise error
        return answer

    def leave(self, lane: int) -> None:
        """Stop waiting for a lane that makes no more calls."""
        with self._changed:
            self._running.discard(lane)
            self._waiting.pop(lane, None)
            self._answer_batch()

    def stop(self) -> None:
        """Make every lane end at its next step or call."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def _answer_batch(self) -> None:
        """Once every lane waits, answer as many of them as one call can. The others keep waiting.

        So a lane that ends its episode early fits together with the others. If all lanes call the same function and
        only shapes differ, the lanes that have waited longest come first.
        """
        if self.stopped or not self._running or set(self._waiting) != self._running:
            return
        groups: dict[Any, list[int]] = {}
        for lane, call in self._waiting.items():
            groups.setdefault(call.batch_key, []).append(lane)
        same_function = len({call.function for call in self._waiting.values()}) == 1
        lanes = next(iter(groups.values())) if same_function else max(groups.values(), key=len)
        lanes.sort()  # the same order in every call
        calls = [self._waiting.pop(lane) for lane in lanes]
        answers: list[tuple[Any, BaseException | None]]
        try:
            answers = [(answer, None) for answer in answer_calls(calls, self.lanes)]
        except BaseException as error:
            answers = [(None, error)] * len(calls)
        self._answers.update(zip(lanes, answers, strict=True))
        self._changed.notify_all()


def answer_calls(calls: Sequence[LaneCall], lanes: int) -> Sequence[Any]:
    """The results of calls with one batch key, padded to `lanes` calls so that only one size is compiled."""
    function, static, _, _ = calls[0]
    if lanes == 1:
        return [function(*calls[0].arguments, **dict(static))]
    padded = [*calls, *[calls[0]] * (lanes - len(calls))]
    return call_vmapped(function, static, [call.arguments for call in padded])[: len(calls)]


def call_vmapped(
    function: Callable[..., Any], static: tuple[tuple[str, Any], ...], arguments: Sequence[tuple[Any, ...]]
) -> Sequence[Any]:
    """The results of a function for the arguments of each lane, from one call under `vmap`.

    Arguments on the host are stacked there. An argument that stays the same from call to call is stacked only once.
    Small results are copied to the host at once: one copy for all lanes, and no lane waits for those before it.
    """
    stacked = [stack_argument(function, *numbered) for numbered in enumerate(zip(*arguments, strict=True))]
    answers = _compiled_batch(function, static, tuple(layout for _, layout in stacked))([value for value, _ in stacked])
    for leaf in jax.tree.leaves(answers):
        if isinstance(leaf, jax.Array) and leaf.nbytes <= SMALL_BYTES:
            leaf.copy_to_host_async()
    return answers


_stacked_arguments: dict[tuple[Any, int], tuple[tuple[Any, ...], Any]] = {}
"""By function and position: the argument of each lane, and the same arguments stacked."""


def stack_argument(function: Callable[..., Any], position: int, column: tuple[Any, ...]) -> tuple[Any, Any]:
    """One argument of all lanes, as it is passed to the compiled batch, and its layout (see `_compiled_batch`)."""
    previous, whole = _stacked_arguments.get((function, position), ((), None))
    if len(previous) == len(column) and all(one is other for one, other in zip(previous, column, strict=True)):
        return whole, None
    flat = [jax.tree.flatten(own) for own in column]
    leaves = list(zip(*(own for own, _ in flat), strict=True))
    if all(isinstance(leaf, jax.Array) for own, _ in flat for leaf in own) and (
        SMALL_BYTES < sum(leaf.nbytes for leaf in flat[0][0]) <= MAX_CACHED_BYTES
    ):
        whole = _stack_trees(column)
        _stacked_arguments[function, position] = column, whole
        return whole, None
    on_host = tuple(all(isinstance(leaf, np.ndarray | np.generic) for leaf in each) for each in leaves)
    return [np.stack(each) if host else each for each, host in zip(leaves, on_host, strict=True)], (flat[0][1], on_host)


@jax.jit
def _stack_trees(column: tuple[Any, ...]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *column)


@lru_cache(maxsize=64)
def _compiled_batch(
    function: Callable[..., Any], static: tuple[tuple[str, Any], ...], layouts: tuple[Any, ...]
) -> Callable[..., Any]:
    """The compiled call for all lanes.

    The layout of an argument is None if its whole tree is stacked. Otherwise it is the tree's structure, and for each
    leaf whether it is stacked.
    """

    def read(value: Any, layout: Any) -> Any:
        if layout is None:
            return value
        structure, on_host = layout
        leaves = [leaf if host else jnp.stack(leaf) for leaf, host in zip(value, on_host, strict=True)]
        return jax.tree.unflatten(structure, leaves)

    def batch(values: list[Any]) -> Any:
        arguments = [read(*pair) for pair in zip(values, layouts, strict=True)]
        answers = jax.vmap(lambda own: function(*own, **dict(static)))(arguments)
        lanes = len(jax.tree.leaves(arguments)[0])
        return tuple(jax.tree.map(lambda leaf, lane=lane: leaf[lane], answers) for lane in range(lanes))

    return jax.jit(batch)
