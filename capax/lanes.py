"""How do several runs share one GPU? Their compiled calls are made together, as one.

A lane is a run of its own, in a thread of its own, with the loop that every run has. A function that is worth it goes through
`shared`: there a lane waits until all others have something to call as well, and those that call the same are answered by
one call under `vmap`. An agent needs nothing else to run in lanes. One plan alone leaves most of a GPU idle; on a CPU there is
nothing idle, so lanes are trained one after the other there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

SMALL, LARGE = 4096, 2**26
"""Bytes of an answer that a lane may want to read at once, or of an argument that is put together anew in every call; and of
an argument that is too large to be kept twice."""
PATIENCE = 5.0
"""Seconds that lanes have to end when they are told to."""
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_here = threading.local()
_making = threading.Lock()


class Stopped(BaseException):
    """The lanes were told to end."""


class Call(NamedTuple):
    """What a lane waits for."""

    function: Callable[..., Any]
    static: tuple[tuple[str, Any], ...]
    arguments: tuple[Any, ...]
    shape: Any
    """Calls whose shapes differ cannot be stacked."""

    @property
    def kind(self) -> Any:
        """Calls of the same kind are made together."""
        return self.function, self.static, self.shape


def shared(function: F) -> F:
    """A compiled function whose calls in several lanes are made as one; its static arguments are named, others are not.

    What was an argument once is not changed in place afterwards: of the same object the same is expected.
    """

    @wraps(function)
    def called(*arguments: Any, **static: Any) -> Any:
        together: Together | None = getattr(_here, "together", None)
        if together is None:
            return function(*arguments, **static)
        known, shapes = _here.shapes.setdefault(function, {}), []
        for position, argument in enumerate(arguments):
            if position not in known or known[position][0] is not argument:  # parameters are, for a whole episode
                known[position] = argument, shape_of(argument)
            shapes.append(known[position][1])
        return together.call(Call(function, tuple(sorted(static.items())), arguments, tuple(shapes)))

    return called  # type: ignore[return-value]


def shape_of(argument: Any) -> Any:
    """What arguments that can be stacked have in common."""
    leaves, structure = jax.tree.flatten(argument)
    return structure, tuple((leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else type(leaf) for leaf in leaves)


def once(function: F) -> F:
    """What makes compiled functions, called once for the same arguments, whichever lane is first: only the same function's
    calls are made together."""
    kept = lru_cache(maxsize=16)(function)

    @wraps(function)
    def called(*arguments: Any) -> Any:
        with _making:
            return kept(*arguments)

    return called  # type: ignore[return-value]


def check() -> None:
    """Leaves a lane that was told to end; for parts of a run that call nothing shared."""
    together: Together | None = getattr(_here, "together", None)
    if together is not None and together.stopped:
        raise Stopped


def count() -> int:
    """Lanes that share the device with this thread's run, itself included."""
    together: Together | None = getattr(_here, "together", None)
    return 1 if together is None else together.lanes


def label() -> str | None:
    """What the lane is called that this thread runs."""
    return getattr(_here, "label", None)


def side_by_side(work: Sequence[Callable[[], T]], labels: Sequence[str]) -> list[T]:
    """Do all of it at once, a lane each; an error of one is raised when the others have come to their end."""
    together = Together(len(work))
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(lane: int) -> None:
        _here.together, _here.lane, _here.label, _here.shapes = together, lane, labels[lane], {}
        try:
            results[lane] = work[lane]()
        except BaseException as error:
            errors[lane] = error
        finally:
            together.leave(lane)

    threads = [threading.Thread(target=run, args=(lane,), name=labels[lane], daemon=True) for lane in range(len(work))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # a signal reaches the main thread between two of these
    except BaseException:
        together.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join(PATIENCE)
        raise
    finally:
        _kept.clear()
    if errors:
        first, *others = sorted(errors)
        errors[first].add_note(f"in the lane {labels[first]}")
        for lane in others:
            errors[first].add_note(f"in the lane {labels[lane]}: {errors[lane]}")
        raise errors[first]
    return [results[lane] for lane in range(len(work))]


class Together:
    """Where lanes wait for each other."""

    def __init__(self, lanes: int) -> None:
        self.lanes, self.stopped = lanes, False
        self._running = set(range(lanes))
        self._waiting: dict[int, Call] = {}
        self._answers: dict[int, tuple[Any, BaseException | None]] = {}
        self._changed = threading.Condition()

    def call(self, call: Call) -> Any:
        """Of the lane that this thread runs: what the function gives it."""
        lane = _here.lane
        hash(call.kind)  # what cannot be compared fails here, in the lane that asks
        with self._changed:
            self._waiting[lane] = call
            self._go()
            while lane not in self._answers:
                if self.stopped:
                    raise Stopped
                self._changed.wait()
            answer, error = self._answers.pop(lane)
        if error is not None:
            raise error
        return answer

    def leave(self, lane: int) -> None:
        """The lane calls nothing any more."""
        with self._changed:
            self._running.discard(lane)
            self._waiting.pop(lane, None)
            self._go()

    def stop(self) -> None:
        """Every lane is to end at its next step or call."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def _go(self) -> None:
        """Once every lane waits, answer as many of them as one call can; the others wait on.

        So a lane that ends its episode early fits when the others do. Where all call the same function and only shapes
        differ, those who waited longest come first.
        """
        if self.stopped or not self._running or set(self._waiting) != self._running:
            return
        kinds: dict[Any, list[int]] = {}
        for lane, call in self._waiting.items():
            kinds.setdefault(call.kind, []).append(lane)
        alike = len({call.function for call in self._waiting.values()}) == 1
        lanes = next(iter(kinds.values())) if alike else max(kinds.values(), key=len)
        lanes.sort()  # the same order in every call
        calls = [self._waiting.pop(lane) for lane in lanes]
        answers: list[tuple[Any, BaseException | None]]
        try:
            answers = [(answer, None) for answer in made(calls, self.lanes)]
        except BaseException as error:
            answers = [(None, error)] * len(calls)
        self._answers.update(zip(lanes, answers, strict=True))
        self._changed.notify_all()


def made(calls: Sequence[Call], lanes: int) -> Sequence[Any]:
    """What calls of one kind give. Always `lanes` of them are made, so that only one number of them is compiled."""
    function, static, _, _ = calls[0]
    if lanes == 1:
        return [function(*calls[0].arguments, **dict(static))]
    padded = [*calls, *[calls[0]] * (lanes - len(calls))]
    return as_one(function, static, [call.arguments for call in padded])[: len(calls)]


def as_one(
    function: Callable[..., Any], static: tuple[tuple[str, Any], ...], arguments: Sequence[tuple[Any, ...]]
) -> Sequence[Any]:
    """What a function gives for the arguments of each lane, by one call.

    What is on the host is put together there, what stays the same from call to call is put together once, and what will be
    wanted on the host is sent for: one copy instead of one for each lane, and no lane waits for the copies of those before it.
    """
    prepared = [stacked(function, *numbered) for numbered in enumerate(zip(*arguments, strict=True))]
    answers = _together(function, static, tuple(how for _, how in prepared))([given for given, _ in prepared])
    for leaf in jax.tree.leaves(answers):
        if isinstance(leaf, jax.Array) and leaf.nbytes <= SMALL:
            leaf.copy_to_host_async()
    return answers


_kept: dict[tuple[Any, int], tuple[tuple[Any, ...], Any]] = {}
"""Arguments of all lanes, by function and position, with the same in one piece."""


def stacked(function: Callable[..., Any], position: int, column: tuple[Any, ...]) -> tuple[Any, Any]:
    """What is handed over of an argument that each lane has one of, and how it is to be read."""
    before, whole = _kept.get((function, position), ((), None))
    if len(before) == len(column) and all(one is other for one, other in zip(before, column, strict=True)):
        return whole, None
    flat = [jax.tree.flatten(own) for own in column]
    leaves = list(zip(*(own for own, _ in flat), strict=True))
    if all(isinstance(leaf, jax.Array) for own, _ in flat for leaf in own) and (
        SMALL < sum(leaf.nbytes for leaf in flat[0][0]) <= LARGE
    ):
        whole = _in_one_piece(column)
        _kept[function, position] = column, whole
        return whole, None
    host = tuple(all(isinstance(leaf, np.ndarray | np.generic) for leaf in each) for each in leaves)
    return [np.stack(each) if there else each for each, there in zip(leaves, host, strict=True)], (flat[0][1], host)


@jax.jit
def _in_one_piece(column: tuple[Any, ...]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *column)


@lru_cache(maxsize=64)
def _together(
    function: Callable[..., Any], static: tuple[tuple[str, Any], ...], how: tuple[Any, ...]
) -> Callable[..., Any]:
    """The compiled call; `how` says of each argument that it comes in one piece, or else its structure and which of its
    leaves come as one array."""

    def read(given: Any, how: Any) -> Any:
        if how is None:
            return given
        structure, host = how
        leaves = [leaf if there else jnp.stack(leaf) for leaf, there in zip(given, host, strict=True)]
        return jax.tree.unflatten(structure, leaves)

    def many(given: list[Any]) -> Any:
        own = [read(*pair) for pair in zip(given, how, strict=True)]
        answers = jax.vmap(lambda own: function(*own, **dict(static)))(own)
        lanes = len(jax.tree.leaves(own)[0])
        return tuple(jax.tree.map(lambda leaf, lane=lane: leaf[lane], answers) for lane in range(lanes))

    return jax.jit(many)
