"""Do sequences stay within episodes, and is a buffer of images what came in, also after it was logged?"""

from __future__ import annotations

import io

import numpy as np
import pytest

from capax.errors import Damaged, InputError
from capax.frames import Drawn, Frames
from capax.runs import tensors
from capax.types import Episode


def episode(number: int, steps: int) -> Episode:
    """Every frame says which episode and step it is from; so do action, reward and cost."""
    image = np.zeros((steps + 1, 8, 8, 1), np.uint8)
    image[..., 0] = number
    image[:, 0, 0, 0] = np.arange(steps + 1)
    at = 1000.0 * number + np.arange(steps)
    return Episode(image[:-1], at[:, None], at, -at, image[1:], 0.0, 0.0, {}, np.zeros(steps, bool))


def filled(*lengths: int, most: int = 10**6) -> Frames:
    frames = Frames(())
    for number, steps in enumerate(lengths):
        frames = frames.add(episode(number, steps), most)
    return frames


def draw(frames: Frames, seed: int, batch: int, chunk: int) -> Drawn:
    return frames.take(frames.pick(np.random.default_rng(seed), (batch,), chunk), chunk)


def test_a_sequence_is_a_piece_of_one_episode():
    drawn = draw(filled(7, 3, 12), 0, 400, 4)
    assert drawn.image.shape == (400, 5, 8, 8, 1) and drawn.image.dtype == np.uint8
    number, first = drawn.image[:, 0, 1, 1, 0].astype(int), drawn.image[:, 0, 0, 0, 0].astype(int)
    assert (drawn.image[:, :, 1, 1, 0] == number[:, None]).all()  # never two episodes in one
    np.testing.assert_array_equal(drawn.image[:, :, 0, 0, 0], first[:, None] + np.arange(5))
    at = 1000.0 * number[:, None] + first[:, None] + np.arange(4)
    for part, sign in ((drawn.action[..., 0], 1), (drawn.reward, 1), (drawn.cost, -1)):
        np.testing.assert_array_equal(part, (sign * at).astype(np.float32))


def test_every_step_is_drawn_as_often_as_the_middle_or_more_and_short_episodes_never():
    # 7 steps are touched from 10 places, 12 from 15: at an end, all four beyond it begin there
    drawn = draw(filled(7, 3, 12), 1, 25_000, 4)
    places, counts = np.unique(drawn.reward[:, 0], return_counts=True)
    assert places.tolist() == [0, 1, 2, 3, *range(2000, 2009)]
    expected = np.array([4, 1, 1, 4, 4, *[1] * 7, 4]) * 1000
    np.testing.assert_allclose(counts, expected, atol=250)  # a deviation is at most 58
    times = np.bincount(drawn.reward.astype(int).ravel())
    assert times[times > 0].min() > 3750


def test_no_episode_is_long_enough():
    with pytest.raises(InputError, match="no episode so far has 13 steps, the longest has 12: choose a smaller chunk"):
        draw(filled(7, 12), 0, 1, 13)


def test_the_oldest_leave_whole():
    frames = filled(4, 5, 6, most=11)
    assert [len(seen.reward) for seen in frames.episodes] == [5, 6] and (frames.size, frames.added) == (11, 15)
    assert filled(4, 50, most=11).size == 50  # the newest stays, however long


def test_frames_are_not_copied_when_others_come():
    frames = filled(5)
    assert frames.add(episode(1, 5), 100).episodes[0].image is frames.episodes[0].image


@pytest.mark.parametrize(("known", "new"), [(0, 3), (7, 2), (10, 1), (22, 0)])
def test_what_a_log_has_not_seen(known, new):
    records = filled(7, 3, 12).since(known)
    assert [after for _, after in records] == [7, 10, 22][3 - new :]


@pytest.mark.parametrize("most", [10**6, 16])
def test_a_log_gives_it_back(most):
    file, frames, known = io.BytesIO(), Frames(()), 0
    lengths = []
    for number, steps in enumerate((7, 3, 12)):
        frames = frames.add(episode(number, steps), most)
        for arrays, after in frames.since(known):
            tensors.write(file, arrays, str(after))
            lengths.append(file.tell())
        known = frames.added
    data, at, records = file.getvalue(), 0, []
    while at < len(data):
        arrays, text, taken = tensors.read(io.BytesIO(data[at:]), len(data) - at)
        records.append((arrays, int(text)))
        at += taken
    again = Frames.restored(records, frames.size, frames.added, len(data))
    assert again.added == frames.added and again.layout == frames.layout
    for one, other in zip(again.episodes, frames.episodes, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(Damaged, match="does not hold 21 steps"):
        Frames.restored(records[:-1], 21, 22, len(data))
