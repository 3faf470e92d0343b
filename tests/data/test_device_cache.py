"""Pieces from the device cache are those of the host as episodes come and go, and so is a fit."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
import pytest

from capax.agents.planet import PlanetSettings
from capax.core.types import Episode
from capax.data import device_cache
from capax.data.device_cache import ImageCache, TransitionCache
from capax.data.image_episodes import ImageBatch, ImageBuffer, SequenceIndex
from capax.data.transitions import COLUMNS, TransitionBuffer
from capax.models import rssm
from capax.models.rssm import RSSMSettings
from capax.models.rssm_fit import fit
from capax.planning.ccem import CEM

SETTINGS = RSSMSettings(deter=6, stoch=3, hidden=6, depth=1, members=2, batch=3, chunk=4, updates=5, free_nats=0.0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device that is not a CPU, and short uploads."""
    monkeypatch.setattr(device_cache, "max_rows", lambda row_bytes: 10**6)
    monkeypatch.setattr(device_cache, "BLOCK_ROWS", 4)
    return monkeypatch


def episode(seed: int, steps: int, side: int = 8) -> Episode:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (steps + 1, side, side, 3), np.uint8)
    action, reward, cost = rng.uniform(-1, 1, (steps, 2)), rng.normal(size=steps), rng.integers(0, 2, steps)
    return Episode(image[:-1], action, reward, cost, image[1:], 0.0, 0.0, {}, np.zeros(steps, bool))


def filled(*lengths: int, capacity: int = 10**6, side: int = 8) -> ImageBuffer:
    frames = ImageBuffer(())
    for number, steps in enumerate(lengths):
        frames = frames.add(episode(number, steps, side), capacity)
    return frames


def from_device(device: ImageCache, frames: ImageBuffer, pieces: SequenceIndex, chunk: int) -> ImageBatch:
    cached = device.sync(frames)
    assert cached is not None
    rows, begins = cached
    which, place, _ = frames.rows(pieces, chunk)
    return device_cache.gather_chunks(rows, jax.numpy.asarray(begins[which] + place))


@pytest.mark.parametrize("capacity", [20, 45, 10**4])
def test_pieces_are_those_of_the_host_as_episodes_come_and_go(gpu, capacity):
    # for 20 steps the cache has 20 + 5 + 2 + 4 rows and is soon full of episodes that have left the buffer
    device, frames, rng = ImageCache(capacity, 4), ImageBuffer(()), np.random.default_rng(0)
    for number, steps in enumerate((7, 3, 8, 5, 9, 3, 6, 8, 4, 11, 5)):
        frames = frames.add(episode(number, steps), capacity)
        pieces = frames.pick(rng, (40,), 4)
        for one, other in zip(from_device(device, frames, pieces, 4), frames.take(pieces, 4), strict=True):
            np.testing.assert_array_equal(one, other)


def test_only_what_is_new_is_uploaded(gpu):
    uploaded = []
    real = device_cache._write_episode
    gpu.setattr(
        device_cache,
        "_write_episode",
        lambda rows, episode, at: uploaded.append(len(episode.reward)) or real(rows, episode, at),
    )
    device, frames = ImageCache(10**4, 4), filled(7, 3, 12)
    device.sync(frames)
    assert uploaded == [7, 12]  # 3 steps are shorter than a chunk
    device.sync(frames.add(episode(3, 9), 10**4))
    assert uploaded == [7, 12, 9]
    device.sync(filled(7, 12))  # equal numbers, but other episodes: of another run, for example
    assert uploaded == [7, 12, 9, 7, 12]


def test_too_many_frames_stay_on_the_host(gpu):
    device = ImageCache(10**4, 4)
    assert device.sync(filled(7)) is not None
    # a row has 8·8·3 + 4·2 + 4 + 4 bytes: there is room for 96 rows
    gpu.setattr(device_cache, "max_rows", lambda row_bytes: 20 * 10**3 // row_bytes)
    assert device.sync(filled(44, 44)) is not None  # 90 rows and a block of 4
    assert device.sync(filled(44, 48)) is None
    assert device.sync(filled(44, 44)) is not None


def test_a_cpu_keeps_no_second_copy():
    assert ImageCache(10**4, 4).sync(filled(7)) is None


@pytest.mark.parametrize("place", ["inside", "anywhere"])
def test_a_fit_on_the_device_is_the_fit_on_the_host(gpu, place):
    frames, settings = filled(7, 3, 12, side=64), replace(SETTINGS, pieces=place)
    shortest = 1 if place == "anywhere" else 4  # steps of an episode that is uploaded
    net = rssm.init(jr.key(0), 3, 2, settings)
    optimiser = rssm.optimiser(settings).init(net)
    pieces = frames.pick(
        np.random.default_rng(0), (settings.updates, settings.batch), settings.chunk, anywhere=place == "anywhere"
    )
    on_device = fit(net, optimiser, ImageCache(100, shortest), frames, pieces, True, jr.key(1), settings)
    gpu.setattr(device_cache, "max_rows", lambda row_bytes: 0)
    on_host = fit(net, optimiser, ImageCache(100, shortest), frames, pieces, True, jr.key(1), settings)
    for one, other, before in zip(
        *(jax.tree.leaves(tree[0]) for tree in (on_device, on_host)), jax.tree.leaves(net), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
        # the old parameters are not overwritten, and the new ones differ, a bias with a small gradient by little
        assert np.abs(np.asarray(one) - before).max() > 1e-6
    np.testing.assert_allclose(on_device[2], on_host[2], rtol=1e-4)


# Transitions.


def transitions(size: int, seed: int = 0) -> TransitionBuffer:
    rng = np.random.default_rng(seed)
    rows = {name: rng.normal(size=(size, *((3,) if "obs" in name else ()))).astype(np.float32) for name in COLUMNS}
    return TransitionBuffer(**{**rows, "action": rng.normal(size=(size, 2)).astype(np.float32)}, added=size)


def part(buffer: TransitionBuffer, first: int, last: int) -> TransitionBuffer:
    return TransitionBuffer(*(column[first:last] for column in buffer.columns), added=last)


def test_transitions_on_the_device_are_the_padded_ones(gpu):
    whole, other = transitions(40), transitions(40, seed=1)
    device, uploaded = TransitionCache(), []
    real = device_cache._write_block
    gpu.setattr(device_cache, "_write_block", lambda rows, block, at: uploaded.append(int(at)) or real(rows, block, at))
    expected = [
        (part(whole, 0, 7), 20, [0, 4]),
        (part(whole, 0, 12), 20, [7, 11]),  # only what is new
        (part(whole, 0, 12), 20, []),
        (part(whole, 3, 15), 20, [0, 4, 8]),  # the oldest have left: all rows are uploaded again
        (part(whole, 3, 20), 40, [0, 4, 8, 12, 16]),  # a larger capacity
        (part(other, 0, 20), 40, [0, 4, 8, 12, 16]),  # of another run
    ]
    for buffer, capacity, at in expected:
        uploaded.clear()
        cached, padded = device.sync(buffer, capacity), buffer.padded(capacity)
        assert uploaded == at and cached.added == padded.added
        for one, two in zip(cached.columns, padded.columns, strict=True):
            np.testing.assert_array_equal(one[:capacity], two)
            assert isinstance(one, jax.Array) and not np.asarray(one[capacity:]).any()


def test_too_many_transitions_stay_on_the_host(gpu):
    device = TransitionCache()
    gpu.setattr(device_cache, "max_rows", lambda row_bytes: 23)
    assert isinstance(device.sync(transitions(10), 20).reward, np.ndarray)


@pytest.mark.slow
def test_the_benchmark_adds_up(monkeypatch):
    spec = importlib.util.spec_from_file_location("images", Path(__file__).parents[2] / "benchmarks" / "images.py")
    assert spec is not None and spec.loader is not None
    images = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(images)
    monkeypatch.setattr(images, "HELD", 1)
    settings = PlanetSettings(SETTINGS, CEM(horizon=3, iterations=2, population=8, elites=2, clip=True))
    times = images.measured(settings, ["plan", "fit", "env"])
    assert times["episode"] == 500 * (times["plan"] + times["env"]) + times["fit"]
