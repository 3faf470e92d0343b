"""How much cost may be expected, so that a budget is kept with a chosen probability."""

from __future__ import annotations

import math

import pytest

from capax.kappa.allowance import allowed_count, noise_margin, typical_run


def poisson_above(mean: float, count: int) -> float:
    """P(Poisson(mean) > count), summed up."""
    return 1.0 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count + 1))


@pytest.mark.parametrize("left", [0.0, 0.9, 1.0, 5.0, 25.0])
@pytest.mark.parametrize("rate", [0.02, 0.4])
def test_counts_that_come_at_random_exceed_what_is_left_with_the_chosen_probability(left, rate):
    assert poisson_above(allowed_count(left, rate), math.floor(left)) == pytest.approx(rate, rel=1e-6)


def test_with_nothing_left_the_expected_count_is_about_the_rate():
    assert allowed_count(0.0, 0.02) == pytest.approx(-math.log(0.98))
    assert allowed_count(-3.0, 0.02) == allowed_count(0.0, 0.02)  # it has violated: the rest is as careful


@pytest.mark.parametrize(("left", "length", "runs"), [(5.0, 2.0, 3), (5.0, 3.0, 2), (5.0, 6.0, 1), (11.0, 4.0, 3)])
def test_costs_that_come_in_runs_exceed_what_is_left_with_the_chosen_probability(left, length, runs):
    # with 5 left, the third run of 2 is too much; the runs come at random, and each costs its length
    assert poisson_above(allowed_count(left, 0.02, length) / length, runs - 1) == pytest.approx(0.02, rel=1e-6)


def test_the_longer_the_runs_the_less_is_allowed():
    allowed = [allowed_count(5.0, 0.02, length) for length in (0.0, 1.0, 1.5, 2.0, 4.0, 5.5, 6.0)]
    assert allowed[0] == allowed[1] and allowed[1:] == sorted(allowed[1:], reverse=True)


def test_runs_longer_than_what_is_left_are_one_too_many():
    assert allowed_count(5.0, 0.02, 50.0) == allowed_count(5.0, 0.02, 6.0) == pytest.approx(-6.0 * math.log(0.98))
    assert allowed_count(0.0, 0.02, 50.0) == allowed_count(0.0, 0.02)  # a single step is too many


def test_a_run_that_is_too_long_counts_as_one_that_just_is():
    assert typical_run([1, 1, 4], 6.0) == pytest.approx(2.0)
    assert typical_run([2, 50], 6.0) == pytest.approx(4.0)
    assert typical_run([], 6.0) == 1.0


def test_a_sum_of_costs_that_rounds_to_a_whole_number_is_that_number():
    assert allowed_count(5.0 - 1e-12, 0.02) == allowed_count(5.0, 0.02)


def test_the_margin_covers_the_noise_of_the_last_steps():
    # z of 2 % is 2.054: noise of .5 in each of 4 steps has a standard deviation of 1
    assert noise_margin(0.5, 100, 0.02) == pytest.approx(2.0537, abs=1e-4)
    assert noise_margin(0.5, 1, 0.02) == pytest.approx(2.0537 / 2.0, abs=1e-4)
    assert noise_margin(0.5, 100, 0.9) == 0.0  # more than half may violate: no margin
