"""How much better was an action than what the policy does otherwise? Generalised advantage estimation."""

from __future__ import annotations

from numpy import ndarray as Array
from scipy.signal import lfilter


def advantages(signal: Array, value: Array, following: Array, terminated: Array, gamma: float, lam: float) -> Array:
    """Â_t = Σ_l (γλ)^l δ_{t+l} of one episode, with δ_t = r_t + γ V(s_{t+1}) (1 − terminated_t) − V(s_t); all `[T]`.

    `following` is V(s_{t+1}): where an episode is cut off, what would have come after is its last one; where it
    terminates, nothing comes.
    """
    delta = signal + gamma * following * (1.0 - terminated) - value
    summed: Array = lfilter([1.0], [1.0, -gamma * lam], delta[::-1])[::-1]
    return summed
