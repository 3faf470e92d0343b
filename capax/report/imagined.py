"""What does an agent see, and what does it believe to see? Frames of a film: the image, its decoding, and a line of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array
from PIL import Image, ImageDraw, ImageFont

from capax.agents.planet import Planet
from capax.types import Key, Metrics

SCALE = 6
"""Pixels of the film for one of the image."""
LINE = 22
"""Height of a line of text."""
RED, WHITE, GREY = (235, 80, 70), (240, 240, 240), (150, 150, 150)


@dataclass
class Watched:
    """An agent that acts as it does, and remembers its last image, belief and plan."""

    agent: Planet
    image: Any = None
    carry: Any = None
    said: dict[str, Any] = field(default_factory=dict)

    def begin(self, state: Any) -> Any:
        return self.agent.begin(state)

    def act(self, state: Any, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        action, carry, said = self.agent.act(state, carry, obs, key)
        self.image, self.carry, self.said = obs, carry, dict(said)
        return action, carry, said

    def paid(self, carry: Any, cost: float) -> Any:
        return self.agent.paid(carry, cost)

    def frame(self, state: Any, step: int, cost: float) -> Array:
        """The last image beside its decoding, with what was planned and paid."""
        told = self.said
        numbers = [
            (f"step {step}", GREY),
            (f"cost {cost:g}", RED if cost > 0.0 else WHITE),
            (f"planned logit {told.get('plan_first_cost', np.nan):.2f}", WHITE),
            (f"u {told.get('plan_first_uncertainty', np.nan):.3g}", WHITE),
            (f"kappa {told.get('plan_kappa', float(state.rule.kappa)):.3g}", WHITE),  # the font has no κ
            (f"feasible {told.get('plan_feasible', np.nan):.0%}", WHITE),
        ]
        return side_by_side(self.image, self.agent.seen(state, self.carry), numbers)


def side_by_side(
    real: Array,
    decoded: Array,
    numbers: Sequence[tuple[str, tuple[int, int, int]]],
    titles: Sequence[str] = ("seen", "believed"),
) -> Array:
    """Two images, enlarged, under their titles, and the numbers below."""
    big = [np.repeat(np.repeat(as_rgb(image), SCALE, 0), SCALE, 1) for image in (real, decoded)]
    height, width = big[0].shape[:2]
    canvas = Image.new("RGB", (2 * width + SCALE, height + 2 * LINE), (20, 20, 20))
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(15)
    for number, (image, title) in enumerate(zip(big, titles, strict=True)):
        canvas.paste(Image.fromarray(image), (number * (width + SCALE), LINE))
        draw.text((number * (width + SCALE) + 4, 2), title, WHITE, font)
    at = 4.0
    for text, colour in numbers:
        draw.text((at, height + LINE + 2), text, colour, font)
        at += draw.textlength(text, font) + 18
    return np.asarray(canvas)


def as_rgb(image: Array) -> Array:
    """Three channels of uint8."""
    return np.repeat(image, 3, -1) if image.shape[-1] == 1 else image
