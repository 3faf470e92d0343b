"""The conventions of the published image model, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.rssm_model import SMALL, STEPS, random_inputs, random_model

from capax.core.errors import InputError
from capax.data.image_episodes import ImageBatch, ImageBuffer, ImageEpisode, SequenceIndex
from capax.models import rssm, rssm_rollout
from capax.models.rssm import Belief
from capax.models.rssm_fit import bootstrap_weights

PLAIN = replace(SMALL, products="float32")


@pytest.fixture(scope="module")
def net() -> Any:
    return random_model(PLAIN)


def episode(first: int, steps: int) -> ImageEpisode:
    """An episode whose images show the numbers from `first` on; its reward in a step is the number before it."""
    image = (
        np.full((steps + 1, 64, 64, 3), 0, np.uint8)
        + np.arange(first, first + steps + 1, dtype=np.uint8)[:, None, None, None]
    )
    reward = np.arange(first, first + steps, dtype=np.float32)
    return ImageEpisode(image, np.zeros((steps, 2), np.float32), reward, np.zeros(steps, np.float32))


BUFFER = ImageBuffer((episode(10, 3), episode(20, 2), episode(30, 4)), 9)


# Pieces.


def test_a_piece_goes_on_with_the_next_episode():
    # steps 11, 12 of the first episode, then 20 of the second; the image after step 12 is not 13 but 20
    index = SequenceIndex(np.array([0]), np.array([1]))
    batch = BUFFER.take(index, 3, anywhere=True)
    assert batch.image[0, :, 0, 0, 0].tolist() == [11, 12, 20, 21] and batch.reward.tolist() == [[11.0, 12.0, 20.0]]
    assert batch.last.tolist() == [[False, True, False]]
    inside = BUFFER.take(SequenceIndex(np.array([0]), np.array([0])), 3)
    assert inside.image[0, :, 0, 0, 0].tolist() == [10, 11, 12, 13] and inside.last is None


def test_every_place_of_the_buffer_is_as_likely():
    # 9 steps: pieces of 5 steps and their 6 images begin at steps 0 to 3
    index = BUFFER.pick(np.random.default_rng(0), (4000,), 5, anywhere=True)
    places = np.array([0, 3, 5])[index.episode] + index.first
    assert np.bincount(places) / 4000 == pytest.approx([0.25] * 4, abs=0.03)
    with pytest.raises(InputError, match="the episodes so far have 9 steps: choose a smaller chunk than 9"):
        BUFFER.pick(np.random.default_rng(0), (1,), 9, anywhere=True)


def test_s_is_not_carried_over_the_end_of_an_episode(net):
    h, s, moves, _ = random_inputs(PLAIN, beliefs=(1,))
    embedded, noise = jnp.zeros((1, 1, 32)), jnp.zeros((1, 1, PLAIN.stoch))
    actions = moves[:1, :1].swapaxes(0, 1)
    arguments = actions, embedded, noise, PLAIN.min_sd
    carried, _, _ = rssm.observe(net, Belief(h, s), *arguments, jnp.array([[False]]))
    cut, _, _ = rssm.observe(net, Belief(h, s), *arguments, jnp.array([[True]]))
    alone, _, _ = rssm.observe(net, Belief(h, jnp.zeros_like(s)), *arguments)
    np.testing.assert_allclose(cut.h, alone.h, rtol=1e-6)
    assert not np.allclose(cut.h, carried.h)


@pytest.mark.parametrize(("pieces", "used"), [("anywhere", False), ("inside", True)])
def test_the_first_image_of_a_piece_is_used_or_not(net, pieces, used):
    settings = replace(PLAIN, pieces=pieces)
    rng = np.random.default_rng(2)
    image, action = rng.integers(0, 256, (2, 3, 64, 64, 3), np.uint8), rng.uniform(-1, 1, (2, 2, 2)).astype(np.float32)
    signal = np.zeros((2, 2), np.float32)
    loss = jax.jit(
        lambda shown: rssm.loss(net, ImageBatch(shown, action, signal, signal), np.bool_(True), jr.key(0), settings)[0]
    )
    other = image.copy()
    other[:, 0] = 255 - other[:, 0]
    assert (float(loss(image)) != float(loss(other))) == used


# One-step models.


def test_members_errors_count_as_often_as_their_bootstrap_has_them():
    # two members, one step, two sequences, one dimension: squared errors 1 and 9 of the first, 4 and 16 of the second
    predicted, s = jnp.array([[[1.0], [3.0]], [[2.0], [4.0]]]), jnp.zeros((2, 1))
    assert float(rssm.member_errors(predicted, s, None)) == (1 + 9) / 2 + (4 + 16) / 2
    # the first member has the first sequence twice, the second has the second one twice
    assert float(rssm.member_errors(predicted, s, jnp.array([[2.0, 0.0], [0.0, 2.0]]))) == (1 + 1) / 2 + (16 + 16) / 2


def test_bootstraps():
    pieces = SequenceIndex(np.array([[0, 1, 1, 2]] * 30), np.zeros((30, 4), int))

    def weights(bootstrap: str, seed: int) -> Any:
        return bootstrap_weights(pieces, BUFFER, jr.key(seed), replace(PLAIN, bootstrap=bootstrap))

    assert weights("none", 0) is None
    batch = weights("batch", 0)
    # each member draws 4 sequences with replacement from the 4 of a gradient step
    assert batch.shape == (30, 4, PLAIN.members) and {*batch.sum(1).ravel()} == {4.0}
    assert batch.mean() == 1.0 and batch.var() == pytest.approx(0.75, abs=0.1)  # binomial, 4 · ¼ · ¾
    # an episode counts the same in every fit
    episodes = weights("episodes", 0)
    assert (episodes[:, 1] == episodes[:, 2]).all() and (episodes == episodes[0]).all()
    np.testing.assert_array_equal(episodes, weights("episodes", 1))


@pytest.mark.parametrize("one_step", ["now", "next"])
def test_the_one_step_models_read_h_before_or_after_the_action(net, one_step):
    settings = replace(PLAIN, one_step=one_step)
    h, s, moves, noise = random_inputs(settings)
    params = rssm_rollout.prepare_rollout(net, settings)
    imagined = rssm_rollout.imagine(params, Belief(h, s), moves, noise, settings=settings)
    belief = Belief(h, s)
    for t in range(STEPS):  # the first candidate, step by step
        before = belief.h
        after, prior = rssm.prior_step(net, belief, moves[0, t], settings.min_sd)
        belief = Belief(after, prior.mean + prior.sd * noise[t])
        read = after if one_step == "next" else before
        _, variance = rssm.disagreement(net.members, read[None], moves[0, t][None])
        expected = settings.multiplier * (float(variance[0]) + settings.floor**2)
        assert float(imagined.uncertainty[0, 0, t]) == pytest.approx(expected, rel=1e-4)


# Imagination.


def test_each_candidate_can_have_its_own_noise(net):
    settings = replace(PLAIN, noise="own")
    h, s, moves, _ = random_inputs(settings)
    each = rssm_rollout.noise_of_each(settings, STEPS)
    assert each is not None and rssm_rollout.noise_of_each(PLAIN, STEPS) is None
    noise = each(jr.key(3), len(moves))
    params = rssm_rollout.prepare_rollout(net, settings)
    together = rssm_rollout.imagine(params, Belief(h, s), moves, noise, settings=settings)
    alone = rssm_rollout.imagine(params, Belief(h, s), moves[2:3], noise[2], settings=PLAIN)
    np.testing.assert_allclose(together.reward[2], alone.reward[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        rssm_rollout.rollout(params, Belief(h, s), moves, jr.key(3), settings=settings).reward, together.reward
    )
    same_actions = jnp.broadcast_to(moves[:1], moves.shape)
    rewards = rssm_rollout.imagine(params, Belief(h, s), same_actions, noise, settings=settings).reward
    assert len(np.unique(np.asarray(rewards)[:, 0, -1])) == len(moves)


@pytest.mark.parametrize(("changes", "word"), [
    ({}, ""), ({"one_step": "next"}, "one_step is next"), ({"noise": "own"}, "noise is own"), ({"floor": 0.0}, "floor"),
    ({"products": "float32"}, "products is float32"),
])  # fmt: skip
def test_the_fused_kernels_leave_published_imagination_to_the_plain_path(changes, word, monkeypatch):
    settings = replace(SMALL, **{"products": "bfloat16", **changes})
    reason = rssm_rollout.unsupported_reason(settings)
    assert (word in reason) if word else reason == ""
    if word:
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert rssm_rollout.fused_kernels(settings, 2) is None
