"""What does CarRacing's frame look like at 64×64, and how is that drawn without drawing the frame?

`reduced` averages the areas of the 600×400 frame that Gymnasium draws. `Painter` draws the same picture at half the size
of Gymnasium's canvas: all polygons are turned and culled at once in NumPy instead of point by point in Python, edges that
the averaging would smooth anyway are not antialiased, and what the dials cover is left out. The car and its dials are
drawn by Gymnasium's own code; the score is written as Gymnasium 1.4 does. Imports Box2D and pygame.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np
import pygame
from gymnasium.envs.box2d import car_racing as theirs
from numpy import ndarray as Array
from scipy import sparse

SIDE = 64
"""Pixels of the picture's side."""
SCALE = 0.5
"""Pixels of our canvas to a pixel of Gymnasium's 1000×800."""
DIALS = theirs.WINDOW_H // 8
"""Rows of Gymnasium's canvas, at its bottom, that the dials fill; an eighth of the picture."""
ROWS = SIDE - SIDE // 8
"""Of the picture, above the dials."""
SCORE = (60, theirs.WINDOW_H - theirs.WINDOW_H * 2.5 / 40.0)
"""Where the score's middle is on Gymnasium's canvas."""
FIELD = theirs.PLAYFIELD * np.array([(1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0)])
_corner = theirs.GRASS_DIM * np.stack(np.meshgrid(*2 * [np.arange(-20, 20, 2)], indexing="ij"), -1).reshape(-1, 1, 2)
GRASS = _corner + theirs.GRASS_DIM * np.array([(1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
"""The lighter patches, `[patches, 4, 2]`."""


@cache
def area_weights(many: int, few: int) -> Any:
    """`[few, many]`: how much of each of `many` equal parts of a line lies in each of `few`; a row sums to 1."""
    ends, starts = np.arange(few + 1) * many / few, np.arange(many)
    covered = np.minimum(ends[1:, None], starts + 1) - np.maximum(ends[:-1, None], starts)
    return sparse.csr_array(np.clip(covered, 0.0, None) * few / many)


def reduced(frame: Array) -> Array:
    """A frame `[H, W, 3]` of bytes at 64×64, each pixel the mean of the area that it covers."""
    height, width, _ = frame.shape
    rows = (area_weights(height, SIDE) @ frame.reshape(height, -1)).reshape(SIDE, width, 3)
    columns = area_weights(width, SIDE) @ rows.swapaxes(0, 1).reshape(width, -1)
    return np.ascontiguousarray(np.round(columns).astype(np.uint8).reshape(SIDE, SIDE, 3).swapaxes(0, 1))


class Painter:
    """Draws a `CarRacing` at 64×64 as it is now."""

    def __init__(self, game: Any) -> None:
        pygame.font.init()
        self.game = game
        self.font = pygame.font.Font(pygame.font.get_default_font(), 42)
        self.canvas = pygame.Surface((int(SCALE * theirs.WINDOW_W), int(SCALE * (theirs.WINDOW_H - DIALS))), 0, 32)
        self.board = pygame.Surface((theirs.WINDOW_W, theirs.WINDOW_H), 0, 32)
        """Gymnasium's canvas; we only look at the dials."""
        self.dials = self.board.subsurface((0, theirs.WINDOW_H - DIALS, theirs.WINDOW_W, DIALS))
        self.middle = SCALE * np.array([theirs.WINDOW_W / 2, theirs.WINDOW_H / 4 - DIALS])
        """Where the car is on our canvas; like Gymnasium's, it is upside down until it is done."""
        self.road: list[Any] | None = None

    def picture(self) -> Array:
        """`[64, 64, 3]` in bytes."""
        seen = np.empty((SIDE, SIDE, 3), np.uint8)
        self._draw_field()
        seen[:ROWS] = _shrunk(self.canvas, ROWS)[::-1]
        self._draw_dials()
        seen[ROWS:] = _shrunk(self.dials, SIDE - ROWS)
        return seen

    def _draw_field(self) -> None:
        game, canvas = self.game, self.canvas
        hull = game.car.hull
        place, angle = np.array(hull.position), -hull.angle
        # The camera comes down in the first second.
        zoom = SCALE * theirs.SCALE * (0.1 * max(1.0 - game.t, 0.0) + theirs.ZOOM * min(game.t, 1.0))
        turn = zoom * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])

        def placed(points: Array) -> Array:
            return (points - place) @ turn + self.middle

        edge = np.array(canvas.get_size())
        corners = (edge * [(0, 0), (0, 1), (1, 0), (1, 1)] - self.middle) @ turn.T / zoom**2 + place
        if np.abs(corners).max() <= theirs.PLAYFIELD:
            canvas.fill(_colour(game.bg_color))
        else:  # there is nothing behind the field
            canvas.fill(0)
            pygame.draw.polygon(canvas, _colour(game.bg_color), placed(FIELD).tolist())
        self._learn_track()
        near = np.abs(placed(self.centres) - 0.5 * edge) < 0.5 * edge + zoom * self.radii[:, None]
        (visible,) = near.all(1).nonzero()
        for k, polygon in zip(visible.tolist(), placed(self.polygons[visible]).tolist(), strict=True):
            pygame.draw.polygon(canvas, _colour(self.colours[k]), polygon)

        particles = game.car.particles
        if particles:
            flat = chain.from_iterable(chain.from_iterable(particle.poly for particle in particles))
            points = iter(placed(np.fromiter(flat, float).reshape(-1, 2)).tolist())
            for particle in particles:
                trail = list(islice(points, len(particle.poly)))
                pygame.draw.lines(canvas, particle.color, False, trail, round(2 * SCALE))
        game.car.draw(canvas, zoom, placed(np.zeros(2)).tolist(), angle, draw_particles=False)

    def _learn_track(self) -> None:
        """The polygons `[Q, 4, 2]` of a new episode, in the order of their drawing, and circles around them."""
        if self.road is self.game.road_poly:
            return
        self.road = self.game.road_poly
        self.polygons = np.concatenate([GRASS, np.array([polygon for polygon, _ in self.road])])
        # Gymnasium writes into the colours of the tiles as the car comes over them.
        self.colours = [self.game.grass_color] * len(GRASS) + [colour for _, colour in self.road]
        self.centres = self.polygons.mean(1)
        self.radii = np.linalg.norm(self.polygons - self.centres[:, None], axis=-1).max(1)

    def _draw_dials(self) -> None:
        self.game.surf = self.board
        self.game._render_indicators(theirs.WINDOW_W, theirs.WINDOW_H)
        score = self.font.render(f"{self.game.reward:04.0f}", True, (255, 255, 255), (0, 0, 0))
        self.board.blit(score, score.get_rect(center=SCORE))


def _shrunk(surface: pygame.Surface, rows: int) -> Array:
    """`[rows, 64, 3]`: the means of the areas."""
    return pygame.surfarray.array3d(pygame.transform.smoothscale(surface, (SIDE, rows))).transpose(1, 0, 2)


def _colour(colour: Sequence[float]) -> tuple[int, int, int]:
    red, green, blue = map(int, colour)
    return red, green, blue
