"""Frames of a film that shows what an agent sees and believes: the image, its decoding, and a line of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray as Array
from PIL import Image, ImageDraw, ImageFont

from capax.core.contracts import Agent
from capax.core.types import Episode, Key, Metrics

SCALE = 6
"""Pixels of the film for one of the image."""
LINE = 22
"""Height of a line of text."""
RED, WHITE, GREY = (235, 80, 70), (240, 240, 240), (150, 150, 150)


class FilmedAgent(Agent[Any]):
    """An agent that acts as another one does, and keeps its last image, belief and plan for a film."""

    def __init__(self, agent: Any) -> None:
        """`agent` also has `decoded_image` (see `core.contracts.Imagines`)."""
        self.agent, self.spec = agent, agent.spec
        self.image: Any = None
        self.carry: Any = None
        self.metrics: Metrics = {}

    def init(self, key: Key) -> Any:
        return self.agent.init(key)

    def begin(self, state: Any) -> Any:
        return self.agent.begin(state)

    def act(self, state: Any, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        action, carry, metrics = self.agent.act(state, carry, obs, key)
        self.image, self.carry, self.metrics = obs, carry, metrics
        return action, carry, metrics

    def observe_cost(self, carry: Any, cost: float) -> Any:
        return self.agent.observe_cost(carry, cost)

    def learn(self, state: Any, episodes: Sequence[Episode], key: Key) -> tuple[Any, Metrics]:
        return self.agent.learn(state, episodes, key)

    def frame(self, state: Any, step: int, cost: float) -> Array:
        """The last image beside its decoding, with planned and paid numbers."""
        plan = self.metrics
        numbers = [
            (f"step {step}", GREY),
            (f"cost {cost:g}", RED if cost > 0.0 else WHITE),
            (f"planned logit {plan.get('plan_first_cost', np.nan):.2f}", WHITE),
            (f"u {plan.get('plan_first_uncertainty', np.nan):.3g}", WHITE),
            (f"kappa {plan.get('plan_kappa', float(state.rule.kappa)):.3g}", WHITE),  # the font has no κ
            (f"feasible {plan.get('plan_feasible', np.nan):.0%}", WHITE),
        ]
        return side_by_side(self.image, self.agent.decoded_image(state, self.carry), numbers)


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
