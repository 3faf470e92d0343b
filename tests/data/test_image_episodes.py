"""Sequences stay within episodes, and an image buffer holds what was added, also after a log is read."""

from __future__ import annotations

import io

import numpy as np
import pytest

from capax.core.errors import Damaged, InputError
from capax.core.types import Episode
from capax.data.image_episodes import ImageBatch, ImageBuffer
from capax.runs import archive


def episode(number: int, steps: int) -> Episode:
    """An episode whose frames, actions, rewards and costs tell their episode and step."""
    image = np.zeros((steps + 1, 8, 8, 1), np.uint8)
    image[..., 0] = number
    image[:, 0, 0, 0] = np.arange(steps + 1)
    at = 1000.0 * number + np.arange(steps)
    return Episode(image[:-1], at[:, None], at, -at, image[1:], 0.0, 0.0, {}, np.zeros(steps, bool))


def filled(*lengths: int, capacity: int = 10**6) -> ImageBuffer:
    frames = ImageBuffer(())
    for number, steps in enumerate(lengths):
        frames = frames.add(episode(number, steps), capacity)
    return frames


def sample(frames: ImageBuffer, seed: int, batch: int, chunk: int) -> ImageBatch:
    return frames.take(frames.pick(np.random.default_rng(seed), (batch,), chunk), chunk)


def test_a_sequence_is_a_piece_of_one_episode():
    batch = sample(filled(7, 3, 12), 0, 400, 4)
    assert batch.image.shape == (400, 5, 8, 8, 1) and batch.image.dtype == np.uint8
    number, first = batch.image[:, 0, 1, 1, 0].astype(int), batch.image[:, 0, 0, 0, 0].astype(int)
    assert (batch.image[:, :, 1, 1, 0] == number[:, None]).all()  # never two episodes in one
    np.testing.assert_array_equal(batch.image[:, :, 0, 0, 0], first[:, None] + np.arange(5))
    at = 1000.0 * number[:, None] + first[:, None] + np.arange(4)
    for part, sign in ((batch.action[..., 0], 1), (batch.reward, 1), (batch.cost, -1)):
        np.testing.assert_array_equal(part, (sign * at).astype(np.float32))


def test_every_step_is_sampled_as_often_as_the_middle_or_more_and_short_episodes_never():
    # 7 steps are touched from 10 places, 12 from 15: at an end, the four places around it begin there
    batch = sample(filled(7, 3, 12), 1, 25_000, 4)
    places, counts = np.unique(batch.reward[:, 0], return_counts=True)
    assert places.tolist() == [0, 1, 2, 3, *range(2000, 2009)]
    expected = np.array([4, 1, 1, 4, 4, *[1] * 7, 4]) * 1000
    np.testing.assert_allclose(counts, expected, atol=250)  # one standard deviation is at most 58
    times = np.bincount(batch.reward.astype(int).ravel())
    assert times[times > 0].min() > 3750


def test_a_chunk_longer_than_every_episode_is_refused():
    with pytest.raises(InputError, match="no episode so far has 13 steps, the longest has 12: choose a smaller chunk"):
        sample(filled(7, 12), 0, 1, 13)


def test_the_oldest_episodes_are_dropped_whole():
    frames = filled(4, 5, 6, capacity=11)
    assert [len(kept.reward) for kept in frames.episodes] == [5, 6] and (frames.size, frames.added) == (11, 15)
    assert filled(4, 50, capacity=11).size == 50  # the newest stays, however long


def test_frames_are_not_copied_when_others_are_added():
    frames = filled(5)
    assert frames.add(episode(1, 5), 100).episodes[0].image is frames.episodes[0].image


@pytest.mark.parametrize(("logged", "new"), [(0, 3), (7, 2), (10, 1), (22, 0)])
def test_since_returns_the_episodes_that_are_not_logged(logged, new):
    records = filled(7, 3, 12).since(logged)
    assert [after for _, after in records] == [7, 10, 22][3 - new :]


@pytest.mark.parametrize("capacity", [10**6, 16])
def test_a_buffer_is_restored_from_its_log(capacity):
    file, frames, logged = io.BytesIO(), ImageBuffer(()), 0
    lengths = []
    for number, steps in enumerate((7, 3, 12)):
        frames = frames.add(episode(number, steps), capacity)
        for arrays, after in frames.since(logged):
            archive.write(file, arrays, str(after))
            lengths.append(file.tell())
        logged = frames.added
    data, at, records = file.getvalue(), 0, []
    while at < len(data):
        arrays, text, length = archive.read(io.BytesIO(data[at:]), len(data) - at)
        records.append((arrays, int(text)))
        at += length
    restored = ImageBuffer.restored(records, frames.size, frames.added, len(data))
    assert restored.added == frames.added and restored.layout == frames.layout
    for one, other in zip(restored.episodes, frames.episodes, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(Damaged, match="does not hold 21 steps"):
        ImageBuffer.restored(records[:-1], 21, 22, len(data))
