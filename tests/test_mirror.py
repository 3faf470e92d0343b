"""Are pieces that are drawn from the device those of the host, as episodes come and go, and is the fit the same?"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
import pytest

from capax import mirror
from capax.agents.fitting import fit
from capax.agents.planet import PlanetSettings
from capax.buffer import COLUMNS, Buffer
from capax.frames import Drawn, Frames, Pieces
from capax.mirror import Mirror, Transitions
from capax.models import rssm
from capax.models.rssm import RSSMSettings
from capax.planning.ccem import CEM
from capax.types import Episode

SETTINGS = RSSMSettings(deter=6, stoch=3, hidden=6, depth=1, members=2, batch=3, chunk=4, updates=5, free_nats=0.0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As if the device were not a CPU, and uploads were short."""
    monkeypatch.setattr(mirror, "room", lambda row: 10**6)
    monkeypatch.setattr(mirror, "BLOCK", 4)
    return monkeypatch


def episode(seed: int, steps: int, side: int = 8) -> Episode:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (steps + 1, side, side, 3), np.uint8)
    action, reward, cost = rng.uniform(-1, 1, (steps, 2)), rng.normal(size=steps), rng.integers(0, 2, steps)
    return Episode(image[:-1], action, reward, cost, image[1:], 0.0, 0.0, {}, np.zeros(steps, bool))


def filled(*lengths: int, most: int = 10**6, side: int = 8) -> Frames:
    frames = Frames(())
    for number, steps in enumerate(lengths):
        frames = frames.add(episode(number, steps, side), most)
    return frames


def from_device(device: Mirror, frames: Frames, pieces: Pieces, chunk: int) -> Drawn:
    found = device.follow(frames)
    assert found is not None
    rows, begins = found
    return mirror.drawn(rows, jax.numpy.asarray(begins[pieces.episode] + pieces.first), chunk)


@pytest.mark.parametrize("most", [20, 45, 10**4])
def test_pieces_are_those_of_the_host_as_episodes_come_and_go(gpu, most):
    # with 20 steps the mirror has 20 + 5 + 2 + 4 rows and is soon full of episodes that have left
    device, frames, rng = Mirror(most, 4), Frames(()), np.random.default_rng(0)
    for number, steps in enumerate((7, 3, 8, 5, 9, 3, 6, 8, 4, 11, 5)):
        frames = frames.add(episode(number, steps), most)
        pieces = frames.pick(rng, (40,), 4)
        for one, other in zip(from_device(device, frames, pieces, 4), frames.take(pieces, 4), strict=True):
            np.testing.assert_array_equal(one, other)


def test_only_what_is_new_is_uploaded(gpu):
    uploaded = []
    real = mirror._written
    gpu.setattr(mirror, "_written", lambda rows, seen, at: uploaded.append(len(seen.reward)) or real(rows, seen, at))
    device, frames = Mirror(10**4, 4), filled(7, 3, 12)
    device.follow(frames)
    assert uploaded == [7, 12]  # nothing is drawn from 3 steps
    device.follow(frames.add(episode(3, 9), 10**4))
    assert uploaded == [7, 12, 9]
    device.follow(filled(7, 12))  # the same numbers, but not the same episodes: of another run, say
    assert uploaded == [7, 12, 9, 7, 12]


def test_frames_that_are_too_many_stay_on_the_host(gpu):
    device = Mirror(10**4, 4)
    assert device.follow(filled(7)) is not None
    gpu.setattr(mirror, "room", lambda row: 20 * 10**3 // row)  # 8·8·3 + 4·2 + 4 + 4 bytes a row: 96 rows
    assert device.follow(filled(44, 44)) is not None  # 90 rows and a block of 4
    assert device.follow(filled(44, 48)) is None
    assert device.follow(filled(44, 44)) is not None


def test_a_cpu_keeps_no_second_copy():
    assert Mirror(10**4, 4).follow(filled(7)) is None


def test_a_fit_on_the_device_is_the_fit_on_the_host(gpu):
    frames = filled(7, 3, 12, side=64)
    net = rssm.init(jr.key(0), 3, 2, SETTINGS)
    memory = rssm.optimiser(SETTINGS).init(net)
    pieces = frames.pick(np.random.default_rng(0), (SETTINGS.updates, SETTINGS.batch), SETTINGS.chunk)
    here = fit(net, memory, Mirror(100, 4), frames, pieces, True, jr.key(1), SETTINGS)
    gpu.setattr(mirror, "room", lambda row: 0)
    there = fit(net, memory, Mirror(100, 4), frames, pieces, True, jr.key(1), SETTINGS)
    for one, other, before in zip(
        *(jax.tree.leaves(tree[0]) for tree in (here, there)), jax.tree.leaves(net), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
        assert np.abs(np.asarray(one) - before).max() > 1e-4  # the parameters before are still there, and others
    np.testing.assert_allclose(here[2], there[2], rtol=1e-4)


# Transitions.


def transitions(size: int, seed: int = 0) -> Buffer:
    rng = np.random.default_rng(seed)
    rows = {name: rng.normal(size=(size, *((3,) if "obs" in name else ()))).astype(np.float32) for name in COLUMNS}
    return Buffer(**{**rows, "action": rng.normal(size=(size, 2)).astype(np.float32)}, added=size)


def part(buffer: Buffer, first: int, last: int) -> Buffer:
    return Buffer(*(column[first:last] for column in buffer.columns), added=last)


def test_transitions_on_the_device_are_the_padded_ones(gpu):
    whole, other = transitions(40), transitions(40, seed=1)
    device, uploaded = Transitions(), []
    real = mirror._put
    gpu.setattr(mirror, "_put", lambda rows, block, at: uploaded.append(int(at)) or real(rows, block, at))
    expected = [
        (part(whole, 0, 7), 20, [0, 4]),
        (part(whole, 0, 12), 20, [7, 11]),  # only what is new
        (part(whole, 0, 12), 20, []),
        (part(whole, 3, 15), 20, [0, 4, 8]),  # the oldest have left: all anew
        (part(whole, 3, 20), 40, [0, 4, 8, 12, 16]),  # more room
        (part(other, 0, 20), 40, [0, 4, 8, 12, 16]),  # of another run
    ]
    for buffer, capacity, at in expected:
        uploaded.clear()
        found, padded = device.follow(buffer, capacity), buffer.padded(capacity)
        assert uploaded == at and found.added == padded.added
        for one, two in zip(found.columns, padded.columns, strict=True):
            np.testing.assert_array_equal(one[:capacity], two)
            assert isinstance(one, jax.Array) and not np.asarray(one[capacity:]).any()


def test_transitions_that_are_too_many_stay_on_the_host(gpu):
    device = Transitions()
    gpu.setattr(mirror, "room", lambda row: 23)
    assert isinstance(device.follow(transitions(10), 20).reward, np.ndarray)


@pytest.mark.slow
def test_the_benchmark_adds_up(monkeypatch):
    spec = importlib.util.spec_from_file_location("images", Path(__file__).parents[1] / "benchmarks" / "images.py")
    assert spec is not None and spec.loader is not None
    images = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(images)
    monkeypatch.setattr(images, "HELD", 1)
    settings = PlanetSettings(SETTINGS, CEM(horizon=3, iterations=2, population=8, elites=2, clip=True))
    told = images.measured(settings, ["plan", "fit", "env"])
    assert told["episode"] == 500 * (told["plan"] + told["env"]) + told["fit"]
