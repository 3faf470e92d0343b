"""CarRacing's frame at 64×64, and a fast way to draw it.

`reduced` averages the areas of the 600×400 frame that Gymnasium draws. `Painter` draws the same picture on a canvas of
half the size of Gymnasium's. It transforms and culls all polygons at once in NumPy, instead of point by point in
Python. Edges are not antialiased, since the averaging smooths them anyway. What the dials cover is omitted. Gymnasium's
own code draws the car and its dials. The score is written as in Gymnasium 1.4. This module imports Box2D and pygame.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np
import pygame
from gymnasium.envs.box2d import car_racing
from numpy import ndarray as Array
from scipy import sparse

SIDE = 64
"""Pixels of the picture's side."""
SCALE = 0.5
"""Pixels of our canvas to a pixel of Gymnasium's 1000×800."""
DIALS = car_racing.WINDOW_H // 8
"""Rows at the bottom of Gymnasium's canvas that the dials fill, an eighth of the picture."""
FIELD_ROWS = SIDE - SIDE // 8
"""Rows of the picture above the dials."""
SCORE = (60, car_racing.WINDOW_H - car_racing.WINDOW_H * 2.5 / 40.0)
"""The centre of the score on Gymnasium's canvas."""
FIELD = car_racing.PLAYFIELD * np.array([(1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0)])
_cells = np.stack(np.meshgrid(*2 * [np.arange(-20, 20, 2)], indexing="ij"), -1).reshape(-1, 1, 2)
_corners = car_racing.GRASS_DIM * _cells
GRASS = _corners + car_racing.GRASS_DIM * np.array([(1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
"""The lighter patches of grass, `[patches, 4, 2]`."""


@cache
def area_weights(size: int, reduced_size: int) -> Any:
    """`[reduced_size, size]`: the share of each pixel of a line in each pixel of the shorter line. A row sums to 1."""
    ends, starts = np.arange(reduced_size + 1) * size / reduced_size, np.arange(size)
    covered = np.minimum(ends[1:, None], starts + 1) - np.maximum(ends[:-1, None], starts)
    return sparse.csr_array(np.clip(covered, 0.0, None) * reduced_size / size)


def reduced(frame: Array) -> Array:
    """A frame `[H, W, 3]` of bytes at 64×64. Each pixel is the mean of the area that it covers."""
    height, width, _ = frame.shape
    rows = (area_weights(height, SIDE) @ frame.reshape(height, -1)).reshape(SIDE, width, 3)
    columns = area_weights(width, SIDE) @ rows.swapaxes(0, 1).reshape(width, -1)
    return np.ascontiguousarray(np.round(columns).astype(np.uint8).reshape(SIDE, SIDE, 3).swapaxes(0, 1))


class Painter:
    """Draws the current state of a `CarRacing` at 64×64."""

    def __init__(self, game: Any) -> None:
        pygame.font.init()
        self.game = game
        self.font = pygame.font.Font(pygame.font.get_default_font(), 42)
        size = int(SCALE * car_racing.WINDOW_W), int(SCALE * (car_racing.WINDOW_H - DIALS))
        self.canvas = pygame.Surface(size, 0, 32)
        self.board = pygame.Surface((car_racing.WINDOW_W, car_racing.WINDOW_H), 0, 32)
        """A canvas of Gymnasium's size, of which only the dials are read."""
        self.dials = self.board.subsurface((0, car_racing.WINDOW_H - DIALS, car_racing.WINDOW_W, DIALS))
        self.car_place = SCALE * np.array([car_racing.WINDOW_W / 2, car_racing.WINDOW_H / 4 - DIALS])
        """The place of the car on the canvas. Like Gymnasium's, the canvas is upside down until the end."""
        self.road: list[Any] | None = None

    def picture(self) -> Array:
        """The picture `[64, 64, 3]` in bytes."""
        pixels = np.empty((SIDE, SIDE, 3), np.uint8)
        self._draw_field()
        pixels[:FIELD_ROWS] = _shrunk(self.canvas, FIELD_ROWS)[::-1]
        self._draw_dials()
        pixels[FIELD_ROWS:] = _shrunk(self.dials, SIDE - FIELD_ROWS)
        return pixels

    def _draw_field(self) -> None:
        game, canvas = self.game, self.canvas
        hull = game.car.hull
        place, angle = np.array(hull.position), -hull.angle
        # The camera comes down in the first second.
        zoom = SCALE * car_racing.SCALE * (0.1 * max(1.0 - game.t, 0.0) + car_racing.ZOOM * min(game.t, 1.0))
        turn = zoom * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])

        def on_canvas(points: Array) -> Array:
            return (points - place) @ turn + self.car_place

        edge = np.array(canvas.get_size())
        corners = (edge * [(0, 0), (0, 1), (1, 0), (1, 1)] - self.car_place) @ turn.T / zoom**2 + place
        if np.abs(corners).max() <= car_racing.PLAYFIELD:
            canvas.fill(_colour(game.bg_color))
        else:  # outside of the field it is black
            canvas.fill(0)
            pygame.draw.polygon(canvas, _colour(game.bg_color), on_canvas(FIELD).tolist())
        self._update_track()
        near = np.abs(on_canvas(self.centres) - 0.5 * edge) < 0.5 * edge + zoom * self.radii[:, None]
        (visible,) = near.all(1).nonzero()
        for k, polygon in zip(visible.tolist(), on_canvas(self.polygons[visible]).tolist(), strict=True):
            pygame.draw.polygon(canvas, _colour(self.colours[k]), polygon)

        particles = game.car.particles
        if particles:
            flat = chain.from_iterable(chain.from_iterable(particle.poly for particle in particles))
            points = iter(on_canvas(np.fromiter(flat, float).reshape(-1, 2)).tolist())
            for particle in particles:
                trail = list(islice(points, len(particle.poly)))
                pygame.draw.lines(canvas, particle.color, False, trail, round(2 * SCALE))
        game.car.draw(canvas, zoom, on_canvas(np.zeros(2)).tolist(), angle, draw_particles=False)

    def _update_track(self) -> None:
        """In a new episode, collect its polygons `[Q, 4, 2]` in the order of drawing, and circles around them."""
        if self.road is self.game.road_poly:
            return
        self.road = self.game.road_poly
        self.polygons = np.concatenate([GRASS, np.array([polygon for polygon, _ in self.road])])
        # Gymnasium writes into the colour of a tile when the car touches it.
        self.colours = [self.game.grass_color] * len(GRASS) + [colour for _, colour in self.road]
        self.centres = self.polygons.mean(1)
        self.radii = np.linalg.norm(self.polygons - self.centres[:, None], axis=-1).max(1)

    def _draw_dials(self) -> None:
        self.game.surf = self.board
        self.game._render_indicators(car_racing.WINDOW_W, car_racing.WINDOW_H)
        score = self.font.render(f"{self.game.reward:04.0f}", True, (255, 255, 255), (0, 0, 0))
        self.board.blit(score, score.get_rect(center=SCORE))


def _shrunk(surface: pygame.Surface, rows: int) -> Array:
    """The surface at `[rows, 64, 3]`. Each pixel is the mean of its area."""
    return pygame.surfarray.array3d(pygame.transform.smoothscale(surface, (SIDE, rows))).transpose(1, 0, 2)


def _colour(colour: Sequence[float]) -> tuple[int, int, int]:
    red, green, blue = map(int, colour)
    return red, green, blue
