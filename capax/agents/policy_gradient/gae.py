"""Generalised advantage estimation: how much better an action was than the policy's average action."""

from __future__ import annotations

from numpy import ndarray as Array
from scipy.signal import lfilter


def advantages(signal: Array, value: Array, next_value: Array, terminated: Array, gamma: float, lam: float) -> Array:
    """Â_t = Σ_l (γλ)^l δ_{t+l} of one episode, with δ_t = r_t + γ V(s_{t+1}) (1 − terminated_t) − V(s_t); all `[T]`.

    `signal` is r, a reward or a cost, and `next_value` is V(s_{t+1}). An episode that is cut off continues with the value
    of its last state; nothing follows a terminated one.
    """
    delta = signal + gamma * next_value * (1.0 - terminated) - value
    result: Array = lfilter([1.0], [1.0, -gamma * lam], delta[::-1])[::-1]
    return result
