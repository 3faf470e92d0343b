"""Logits are multiplied by the factor that makes the observed costs most likely."""

from __future__ import annotations

import numpy as np
import pytest

from capax.models.sharpness import MAX_SHARPNESS, sharpness


@pytest.mark.parametrize("true", [1.0, 2.0, 3.5, 9.0])
def test_the_true_factor_is_found(true):
    # costs are drawn with probability σ(true · logit)
    rng = np.random.default_rng(0)
    logit = rng.normal(scale=1.5, size=20_000)
    cost = (rng.random(logit.size) < 1.0 / (1.0 + np.exp(-true * logit))).astype(float)
    assert sharpness(logit, cost) == pytest.approx(true, rel=0.08)


def test_costs_that_the_logits_separate_have_the_largest_factor():
    logit = np.array([-3.0, -2.0, -1.0, 1.0, 2.0])
    assert sharpness(logit, (logit > 0.0).astype(float)) == MAX_SHARPNESS


def test_overconfident_logits_are_not_made_bolder():
    rng = np.random.default_rng(1)
    logit = rng.normal(scale=4.0, size=5000)
    cost = (rng.random(logit.size) < 1.0 / (1.0 + np.exp(-0.3 * logit))).astype(float)
    assert sharpness(logit, cost) == 1.0


def test_logits_that_are_not_finite_change_nothing():
    assert sharpness(np.array([np.nan, 1.0]), np.array([0.0, 1.0])) == 1.0
