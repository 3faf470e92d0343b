"""Is the model what it says: its KL, its loss, its filter, its uncertainty, and does it learn?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from capax.agents.fitting import judged
from capax.frames import Drawn
from capax.models import convolution, imagine, layers, rssm
from capax.models.rssm import Belief, Gaussian, RSSMSettings

TINY = RSSMSettings(deter=12, stoch=4, hidden=16, depth=2, batch=3, chunk=5, products="float32")
A = 2


@pytest.fixture(scope="module")
def net() -> rssm.RSSM:
    return rssm.init(jr.key(0), 3, A, TINY)


def drawn(seed: int = 0, batch: int = 3, steps: int = 5) -> Drawn:
    rng = np.random.default_rng(seed)
    return Drawn(
        rng.integers(0, 256, (batch, steps + 1, 64, 64, 3), np.uint8),
        rng.uniform(-1, 1, (batch, steps, A)).astype(np.float32),
        rng.normal(size=(batch, steps)).astype(np.float32),
        rng.integers(0, 2, (batch, steps)).astype(np.float32),
    )


# Gaussians.


def test_kl_by_monte_carlo():
    p = Gaussian(jnp.array([0.3, -1.0]), jnp.array([0.5, 1.2]))
    q = Gaussian(jnp.array([0.0, 0.5]), jnp.array([1.0, 0.8]))
    x = p.mean + p.sd * jr.normal(jr.key(0), (400_000, 2))

    def log(g: Gaussian) -> Any:
        return (-0.5 * jnp.square((x - g.mean) / g.sd) - jnp.log(g.sd)).sum(-1)

    ratio = np.asarray(log(p) - log(q))
    assert float(rssm.kl(p, q)) == pytest.approx(ratio.mean(), abs=4 * float(ratio.std()) / 632)


def test_kl_by_hand():
    # σ 1 and 2, means 1 apart: log 2 + (1 + 1)/8 − ½
    p, q = Gaussian(jnp.array([0.0]), jnp.array([1.0])), Gaussian(jnp.array([1.0]), jnp.array([2.0]))
    assert float(rssm.kl(p, q)) == pytest.approx(np.log(2.0) + 0.25 - 0.5)
    assert float(rssm.kl(p, p)) == 0.0


def test_deviations_are_not_below_the_least(net):
    _, prior = rssm.forward(net, rssm.start((7,), TINY), jnp.full((7, A), -50.0), 0.1)
    assert float(prior.sd.min()) > 0.1


# Shapes and pictures.


def test_images_are_reduced_to_32_levels_and_centred():
    image = np.array([0, 7, 8, 128, 255], np.uint8).reshape(1, 5, 1)
    np.testing.assert_allclose(
        rssm.quantised(jnp.asarray(image)).ravel(), [-0.5, -0.5, -0.5 + 1 / 32, 0.0, 31 / 32 - 0.5]
    )


@pytest.mark.parametrize("shape", [(40, 64, 64, 3), (5, 3, 1)])
def test_what_is_between_two_levels_is_drawn_evenly(shape):
    between = np.asarray(rssm.between_levels(jr.key(0), shape))
    assert between.shape == shape and between.min() > 0.0 and between.max() < 1.0
    assert not np.array_equal(between, rssm.between_levels(jr.key(1), shape))
    if between.size > 1e5:
        counts = np.bincount((between.ravel() * 256.0).astype(int), minlength=256)
        # each of the 256 steps has n/256 in the mean, and a deviation of √(n/256): χ² of 255 degrees is 255 ± √510
        each = between.size / 256.0
        assert abs((np.square(counts - each) / each).sum() - 255.0) < 5.0 * np.sqrt(510.0)
        quarters = between.reshape(-1, 4) - 0.5  # from one word each: no two of them go together
        together = quarters.T @ quarters / len(quarters) * 12.0
        np.testing.assert_allclose(together, np.eye(4), atol=5.0 / np.sqrt(len(quarters)))


def test_convolutions_have_the_sizes_of_the_paper():
    full = jax.eval_shape(lambda key: rssm.init(key, 3, A, RSSMSettings()), jr.key(0))
    assert jax.eval_shape(rssm.encode, full, jnp.zeros((1, 64, 64, 3))).shape == (1, 1024)
    assert jax.eval_shape(rssm.decode, full, jnp.zeros((1, 230))).shape == (1, 64, 64, 3)


@pytest.mark.parametrize("side", [6, 14, 31])
def test_a_convolution_of_stride_2_in_another_form(side):
    x, w = jr.normal(jr.key(0), (2, side, side, 3)), jr.normal(jr.key(1), (4, 4, 3, 5))
    plain = jax.lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(convolution.halved(x, w), plain, rtol=1e-4, atol=1e-4)


def test_what_an_agent_sees_is_what_the_model_was_trained_to_see(net):
    x = jr.uniform(jr.key(0), (2, 64, 64, 3)) - 0.5
    ready = rssm.seeing(net)
    assert all(layer.w.shape[0] == len(layer.b) for layer in ready.encoder) and ready.decoder is None
    trained, seen = rssm.encode(net, x), jnp.stack([rssm.see(ready, image) for image in x])
    assert float(trained.std()) > 1e-3
    np.testing.assert_allclose(seen, trained, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [2, 3])
def test_the_gradient_of_a_convolution_image_by_image(k):
    x, w = jr.normal(jr.key(0), (3, 7, 6, 2)), jr.normal(jr.key(1), (k, k, 2, 5))

    def slopes(form):
        return jax.grad(lambda x, w: jnp.sin(form(x, w)).sum(), (0, 1))(x, w)

    for ours, theirs in zip(slopes(convolution.by_images), slopes(convolution.plain), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "kernel"), [(64, 4), (31, 3), (15, 3), (8, 3)])
def test_a_strided_convolution_has_xlas_gradient(size, kernel):
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((3, size, size, 5), (kernel, kernel, 5, 6)))

    def slopes(convolve: Any) -> Any:
        return jax.grad(lambda x, w: jnp.sin(convolve(x, w)).sum(), (0, 1))(x, w)

    for ours, theirs in zip(slopes(convolution.twos_by_images), slopes(convolution.by_twos), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("side", "k"), [(1, 5), (5, 5), (13, 6), (30, 6)])
def test_a_transposed_convolution_in_another_form(side, k):
    # y[2m + a] takes x[m] times tap a: JAX's own has the taps in the other order
    x, w = jr.normal(jr.key(0), (2, side, side, 3)), jr.normal(jr.key(1), (k, k, 3, 5))
    plain = jax.lax.conv_transpose(x, w[::-1, ::-1], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    assert plain.shape[1] == 2 * (side - 1) + k
    np.testing.assert_allclose(convolution.doubled(x, w), plain, rtol=1e-4, atol=1e-4)


def test_a_gru_by_hand():
    # all weights 0: the gates are ½ and the candidate tanh(0) = 0, so half of h stays; a large bias of z keeps all of it
    gru = layers.GRU(layers.Dense(jnp.zeros((2, 9)), jnp.zeros(9)), layers.Dense(jnp.zeros((3, 9)), jnp.zeros(9)))
    h = jnp.array([1.0, -2.0, 4.0])
    np.testing.assert_allclose(gru(jnp.ones(2), h), 0.5 * h)
    keep = eqx.tree_at(lambda g: g.x.b, gru, jnp.array([0.0, 0, 0, 50, 50, 50, 0, 0, 0]))
    np.testing.assert_allclose(keep(jnp.ones(2), h), h)


# The filter.


def test_observing_is_filtering_step_by_step(net):
    T, B = 6, 3
    keys = jr.split(jr.key(1), 3)
    actions, embedded, noise = (
        jr.normal(k, (T, B, n)) for k, n in zip(keys, (A, 32 * TINY.depth, TINY.stoch), strict=True)
    )
    belief = rssm.start((B,), TINY)
    beliefs, prior, posterior = rssm.observe(net, belief, actions, embedded, noise, TINY.min_sd)
    for t in range(T):
        belief, before, after = rssm.filtered(net, belief, actions[t], embedded[t], noise[t], min_sd=TINY.min_sd)
        for all_at_once, one in ((beliefs, belief), (prior, before), (posterior, after)):
            for a, b in zip(all_at_once, one, strict=True):
                np.testing.assert_allclose(a[t], b, rtol=1e-5, atol=1e-6)


def test_one_belief_is_filtered_as_many_are(net):
    # acting filters one image, training many
    action, embedded, noise = jnp.ones((1, A)), jr.normal(jr.key(0), (1, 32 * TINY.depth)), jnp.ones((1, TINY.stoch))
    many, *_ = rssm.filtered(net, rssm.start((1,), TINY), action, embedded, noise, min_sd=0.1)
    one, *_ = rssm.filtered(net, rssm.start((), TINY), action[0], embedded[0], noise[0], min_sd=0.1)
    np.testing.assert_allclose(one.feature, many.feature[0], rtol=1e-5, atol=1e-6)


# The loss.


def silent(net: rssm.RSSM, reward: float, logit: float) -> rssm.RSSM:
    """All weights 0; the decoder gives 0, the heads what is asked for, and prior and posterior are alike."""
    zero = jax.tree.map(jnp.zeros_like, net)
    zero = eqx.tree_at(lambda n: n.reward[-1].b, zero, jnp.array([reward]))
    return eqx.tree_at(lambda n: n.cost[-1].b, zero, jnp.array([logit]))


def test_the_loss_by_hand(net):
    # black images: the level −½ with noise in [0, 1/32) on 64·64·3 pixels, decoded as 0; mean of (−½ + x)² for x uniform
    # rewards 2 foretold as ½: 2.25; costs 1 with logit −1: log(1 + e^(−1)) + 1; KL 0 is lifted to the free nats
    quiet = silent(net, 0.5, -1.0)
    data = Drawn(np.zeros((3, 6, 64, 64, 3), np.uint8), np.zeros((3, 5, A), np.float32),
                 np.full((3, 5), 2.0, np.float32), np.ones((3, 5), np.float32))  # fmt: skip
    total, parts = rssm.loss(quiet, data, jnp.asarray(True), jr.key(0), TINY)
    w = 1 / 32
    assert float(parts.image) == pytest.approx(64 * 64 * 3 * (0.25 - 0.5 * w + w**2 / 3), rel=1e-3)
    assert float(parts.reward) == pytest.approx(2.25)
    assert float(parts.cost) == pytest.approx(np.log1p(np.exp(-1.0)) + 1.0)
    assert float(parts.kl) == pytest.approx(3.0)
    # members foretell 0; s is drawn with deviation log 2 + .1 around 0, and each of five members pays its square
    s = (np.log(2.0) + 0.1) * jr.normal(jr.split(jr.key(0))[0], (6, 3, TINY.stoch))[1:]
    assert float(parts.members) == pytest.approx(5 * float(jnp.square(s).mean()), rel=1e-5)
    weighted = float(sum(parts)) + 99.0 * float(parts.reward + parts.cost)
    assert TINY.emphasis == 100.0 and float(total) == pytest.approx(weighted, rel=1e-6)
    _, real = rssm.loss(quiet, data, jnp.asarray(False), jr.key(0), TINY)
    assert float(real.cost) == pytest.approx(4.0)  # (1 − (−1))²


def test_the_members_do_not_move_the_beliefs(net):
    def members_alone(net: rssm.RSSM) -> Any:
        return rssm.loss(net, drawn(), jnp.asarray(True), jr.key(0), TINY)[1].members

    grads = jax.grad(members_alone)(net)
    moved = eqx.tree_at(lambda n: n.members, grads, None)
    assert all(float(jnp.abs(leaf).max()) == 0.0 for leaf in jax.tree.leaves(moved))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads.members)) > 0.0


def test_a_reward_is_foretold_from_the_belief_after_its_action(net):
    # what reward t teaches depends on image t + 1, which came of the same action, and not on later ones
    data = drawn(steps=3)

    def reward_of(images: Any) -> Any:
        return rssm.loss(net, data._replace(image=images), jnp.asarray(True), jr.key(0), TINY)[1].reward

    last_changed = data.image.copy()
    last_changed[:, -1] = 0
    assert float(reward_of(data.image)) != float(reward_of(last_changed))


def test_training_lowers_the_reconstruction_loss():
    # a bright square whose place is the sum of the actions: an autoencoder alone would do, a belief must carry it
    rng = np.random.default_rng(0)
    image = np.zeros((3, 6, 64, 64, 3), np.uint8)
    for b in range(3):
        for t in range(6):
            x = 8 + 8 * b + 4 * t
            image[b, t, 20:36, x : x + 12] = 255
    action = rng.uniform(-1, 1, (3, 5, A)).astype(np.float32)
    data = Drawn(image, action, np.ones((3, 5), np.float32), np.zeros((3, 5), np.float32))
    settings = replace(TINY, learning_rate=3e-3)
    net = rssm.init(jr.key(0), 3, A, settings)
    memory = rssm.optimiser(settings).init(net)
    seen = []
    for number in range(150):
        net, memory, parts = rssm.update(net, memory, data, np.bool_(True), jr.key(number), settings)
        seen.append(float(parts.image))
    assert np.mean(seen[-10:]) < 0.5 * np.mean(seen[:3])
    assert float(parts.reward) < 0.2 and float(parts.cost) < 0.3


# Uncertainty.


def test_members_that_agree_are_certain(net):
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), net.members)
    h, action = jr.normal(jr.key(0), (9, TINY.deter)), jr.normal(jr.key(1), (9, A))
    _, u = rssm.disagreement(same, h, action)
    np.testing.assert_allclose(u, 0.0, atol=1e-12)
    expected, u = rssm.disagreement(net.members, h, action)
    np.testing.assert_allclose(u, np.var(expected, axis=0, ddof=1).mean(-1), rtol=1e-4)


def test_uncertainty_rises_away_from_the_data():
    # members learn s = 0 for |h| ≤ 1; far from there nothing holds them together
    members = rssm.init(jr.key(0), 3, A, TINY).members
    h, action = jr.uniform(jr.key(1), (256, TINY.deter), minval=-1.0), jr.uniform(jr.key(2), (256, A), minval=-1.0)

    @jax.jit
    def step(members: Any) -> Any:
        grads = jax.grad(lambda m: jnp.square(rssm.disagreement(m, h, action)[0]).mean((1, 2)).sum())(members)
        return jax.tree.map(lambda leaf, grad: leaf - 0.3 * grad, members, grads)

    for _ in range(300):
        members = step(members)
    near, far = (float(rssm.disagreement(members, scale * h, action)[1].mean()) for scale in (1.0, 5.0))
    assert far > 10.0 * near


# Imagining.


def test_a_rollout_is_the_prior_step_by_step(net):
    N, H = 4, 3
    actions = jr.uniform(jr.key(3), (N, H, A), minval=-1.0)
    first = Belief(jr.normal(jr.key(4), (TINY.deter,)), jr.normal(jr.key(5), (TINY.stoch,)))
    imagined = imagine.rollout(imagine.ready(net, TINY), first, actions, jr.key(6), settings=TINY)
    noise = jr.normal(jr.key(6), (H, 1, TINY.stoch))
    belief = Belief(*(jnp.broadcast_to(part, (N, part.shape[-1])) for part in first))
    for t in range(H):
        _, u = rssm.disagreement(net.members, belief.h, actions[:, t])
        h, prior = rssm.forward(net, belief, actions[:, t], TINY.min_sd)
        belief = Belief(h, prior.mean + prior.sd * noise[t])
        np.testing.assert_allclose(
            imagined.reward[:, 0, t], rssm.head(net.reward, belief.feature), rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(imagined.cost[:, 0, t], rssm.head(net.cost, belief.feature), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(imagined.uncertainty[:, 0, t], TINY.multiplier * (u + TINY.floor**2), rtol=1e-4)
    assert (imagined.alive == 1.0).all()


def test_half_precision_is_close(net):
    actions = jr.uniform(jr.key(3), (4, 3, A), minval=-1.0)
    one, other = (
        imagine.rollout(imagine.ready(net, own), rssm.start((), TINY), actions, jr.key(6), settings=own)
        for own in (replace(TINY, products=products) for products in ("float32", "bfloat16"))
    )
    np.testing.assert_allclose(one.reward, other.reward, atol=0.05)
    np.testing.assert_allclose(one.uncertainty, other.uncertainty, rtol=0.1)


def test_what_was_done_is_judged_as_a_plan_would_be(net):
    # 9 steps: stretches of 5 that begin at 2, 3 and 4
    data = drawn(steps=9)
    logit, u, cost, earned = judged(net, data, jr.key(0), TINY)
    assert logit.shape == u.shape == cost.shape == earned.shape == (9,)
    _, _, belief, _, _ = rssm.followed(net, data, jr.key(0), TINY)
    for number, at in enumerate((2, 3, 4)):
        for row in range(3):
            here, span = 3 * number + row, slice(at, at + 5)
            start = Belief(belief.h[at, row], belief.s[at, row])
            move = data.action[row : row + 1, span]
            alone = imagine.rollout(imagine.ready(net, TINY), start, move, jr.key(0), settings=TINY)
            worst = int(jnp.argmin(-alone.cost / alone.uncertainty))
            np.testing.assert_allclose(logit[here], alone.cost[0, 0, worst], rtol=1e-4)
            np.testing.assert_allclose(u[here], alone.uncertainty[0, 0, worst], rtol=1e-4)
            assert float(cost[here]) == data.cost[row, span].max()
            np.testing.assert_allclose(earned[here], data.reward[row, span].sum(), rtol=1e-5)
