"""Intervals against closed forms, and what is read of stored runs."""

from __future__ import annotations

import hashlib
import json

import pytest

from benchmarks.figures import stored, words
from benchmarks.figures.guarantees import binary_step, bound, budget_bound, worst_share
from benchmarks.figures.measures import Entry, planned_violations, random_words
from capax.reporting import intervals


def test_exact_share_without_a_hit():
    # Clopper–Pearson without a hit: (1 − high)^n = α/2
    assert intervals.of_share(0, 20)[1:] == pytest.approx((0.0, 1.0 - 0.025 ** (1 / 20)))
    assert intervals.of_share(20, 20)[1:] == pytest.approx((0.025 ** (1 / 20), 1.0))


def test_exact_share_of_one_hit_in_two():
    # P(X ≥ 1) = 1 − (1 − p)² = .025 at the lower limit; the upper one mirrors it
    low = 1.0 - (1.0 - 0.025) ** 0.5
    assert intervals.of_share(1, 2) == pytest.approx((0.5, low, 1.0 - low))


def test_three_seeds_reach_from_the_lowest_to_the_highest():
    # of the 27 resamples one has three times the lowest: probability 1/27 > .025
    assert intervals.of_seeds([3.0, 1.0, 5.0]) == (3.0, 1.0, 5.0)


def test_from_four_seeds_on_the_centre_is_the_inter_quartile_mean():
    assert intervals.of_seeds([0.0, 1.0, 2.0, 100.0]).centre == 1.5  # the lowest and the highest quarter are cut off


def test_many_values_are_resampled_in_the_same_way_each_time():
    values = [float(value) for value in range(40)]
    first = intervals.of_mean(values)
    intervals._bootstrap.cache_clear()
    assert intervals.of_mean(values) == first
    error = (sum((value - 19.5) ** 2 for value in values) / 40) ** 0.5 / 40**0.5
    assert first.high - first.low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_a_rate_covers_both_intervals():
    both = intervals.of_rate([0, 10], [10, 10])
    pooled = intervals.of_share(10, 20)
    assert both.centre == 0.5
    assert both.low == 0.0 < pooled.low  # of the four resamples, one has no hit: a quarter
    assert both.high == 1.0 > pooled.high
    assert intervals.of_rate([3], [10]) == intervals.of_share(3, 10)


def test_numbers_are_written_plainly():
    assert words.number(-3.29, 1) == "−3.3"
    assert words.number(-0.001, 1) == "0.0"
    assert words.number(12345.6) == "12,346"
    assert words.seeds([0]) == "one seed (0)"
    assert words.interval(intervals.Interval(0.5, 0.25, 12.0)) == "0.5 [0.2, 12.0]"


def test_bounds_are_those_of_the_theorems():
    assert bound(0.02, 0.5, 0.1, 100) == pytest.approx(0.02 + 0.598 / 10)
    assert budget_bound(0.02, 5, 100) == pytest.approx(0.13)
    assert binary_step(0.4) == (0.2, pytest.approx(1.4))
    assert worst_share(0.02, 0.499, 0.1, 100) == 0.07  # episodes 1 to 6, then the 52nd


def test_a_run_is_packed_and_unpacked_without_a_change(tmp_path):
    stored.unpack(stored.RESULTS / "halfcheetah" / "lanes-0", tmp_path / "plain")
    stored.pack(tmp_path / "plain", tmp_path / "packed")
    assert (tmp_path / "packed" / stored.PACKED).read_bytes() == (
        stored.RESULTS / "halfcheetah" / "lanes-0" / stored.PACKED
    ).read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "plain" / "episodes.jsonl").read_text().splitlines()]
    assert tuple(rows) == stored.run("halfcheetah/lanes-0").rows


def test_the_digests_are_those_of_the_files():
    lines = [line.split("  ") for line in (stored.RESULTS / stored.DIGESTS).read_text().splitlines()]
    sums = {name: hashlib.sha256((stored.RESULTS / name).read_bytes()).hexdigest() for _, name in lines}
    assert {name: digest for digest, name in lines} == sums
    assert "halfcheetah/conformal-0/episodes.jsonl.xz" in sums


def test_violations_of_random_and_planned_episodes_are_apart():
    entry = Entry("", "carracing/worth-0.4")
    (run,) = entry.runs
    assert (planned_violations(run), len(run.planned), random_words(entry.runs)) == (39, 197, "5 of 5")
    assert sum(row["violation"] for row in run.rows) == 44


def test_every_group_of_runs_says_how_it_was_made():
    facts = stored.read_json("runs.json")
    folders = [path.parent for path in stored.RESULTS.glob("*/*/config.json") if path.parts[-3] != "superseded"]
    groups = {f"{path.parent.name}/{path.name.rpartition('-')[0]}" for path in folders}
    assert groups == set(facts)
    for name, entry in facts.items():
        assert len(entry["earlier"]) == len(stored.group(name)), name


def test_every_measurement_names_machine_commit_and_command():
    paths = sorted((stored.RESULTS / "speed").glob("*.json"))
    assert paths
    for path in paths:
        table = json.loads(path.read_text())
        assert {"command", "commit", "machine", "transcribed", "figures"} <= set(table), path
        assert table["machine"]["processor"] and table["machine"]["cores"] and table["commit"], path
