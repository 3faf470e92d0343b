"""Tables of runs on HalfCheetah and Car-Racing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.figures import stored, words
from benchmarks.figures.measures import (
    Entry,
    from_episode,
    last,
    middle,
    of_group,
    planned_rate,
    planned_violations,
    planned_words,
    random_words,
)
from benchmarks.figures.registry import figure
from capax.paper.rows import ROWS

MANY_STEPS = 100_000
"""Where the runs of methods without a model are read off for the first time, on HalfCheetah."""
SETTLED = 70
"""The episode from which the Car-Racing run is described as a whole."""
Column = tuple[str, Callable[[Entry], str]]


def seeds(entry: Entry) -> str:
    """Seeds of a line."""
    return words.seeds([run.config["seed"] for run in entry.runs])


def key(name: str) -> Callable[[Entry], str]:
    """A column with the last ten episodes' mean of a key."""
    return lambda entry: of_group(entry.runs, name)


def earlier(entry: Entry) -> str:
    """Earlier runs of the same seeds, which the development of the method has used."""
    return words.listed(entry.facts["earlier"])


def paper(name: str) -> Callable[[Entry], str]:
    """A column with a number of the paper."""

    def cell(entry: Entry) -> str:
        value = None if entry.paper is None else getattr(entry.paper, name)
        return "–" if value is None else f"{value:,.1f}".replace("-", "−")

    return cell


LABEL: Column = ("", lambda entry: entry.label)
SEEDS: Column = ("seeds", seeds)
PLANNED: Column = ("violating planned episodes, by seed", lambda entry: planned_words(entry.runs))
RATE: Column = ("their share", lambda entry: words.percent(planned_rate(entry.runs)))
RANDOM: Column = ("violating random episodes", lambda entry: random_words(entry.runs))
EARLIER: Column = ("earlier runs of these seeds", earlier)
RETURNS: tuple[Column, ...] = (("return", key("return")), ("discounted return", key("discounted_return")))
PAPER: tuple[Column, ...] = (
    ("paper: return", paper("earned")),
    ("paper: cost", paper("paid")),
    ("paper: violations", paper("violations")),
)


def lines(entries: Sequence[Entry], columns: Sequence[Column]) -> str:
    """A table with a line for each entry."""
    return words.table([title for title, _ in columns], ([cell(entry) for _, cell in columns] for entry in entries))


@figure
def halfcheetah_table() -> str:
    """README: the two rules for κ and the methods without a model."""
    cost: Column = ("discounted cost (limit 152)", key("discounted_cost"))
    entries = [
        Entry("**`conformal`** (ours, default; ε = .02)", "halfcheetah/conformal", paper=None),
        Entry("the same once more, alone", "halfcheetah/alone"),
        Entry("the same, later code, 87 episodes", "halfcheetah/lanes"),
        Entry("`adam` (the paper's rule for κ)", "halfcheetah/adam"),
    ]
    return lines(entries, (LABEL, SEEDS, *RETURNS, cost, PLANNED, RATE, RANDOM, EARLIER))


@figure
def halfcheetah_like_for_like() -> str:
    """The two rules at one commit, where neither had the budget within an episode."""
    cost: Column = ("discounted cost (limit 152)", key("discounted_cost"))
    entries = [
        Entry("`conformal` without the budget within an episode", "superseded/halfcheetah/conformal-c583b63"),
        Entry("`adam`", "halfcheetah/adam"),
    ]
    return lines(entries, (LABEL, SEEDS, *RETURNS, cost, PLANNED, RATE, RANDOM))


@figure
def model_free_table() -> str:
    """Methods without a model on HalfCheetah, at 100,000 and at a million steps."""
    cost: Column = ("discounted cost (limit 152)", key("discounted_cost"))
    labels = {"ppo": "PPO", "ppo-lag": "PPO-Lagrangian", "focops": "FOCOPS"}
    entries = [
        Entry(f"{label}, {name}", f"halfcheetah/{method}", steps, ROWS[f"halfcheetah-{method}-{when}"])
        for method, label in labels.items()
        for name, steps, when in (("100,000 steps", MANY_STEPS, "100k"), ("1,000,000 steps", None, "1m"))
    ]
    return lines(entries, (LABEL, SEEDS, *RETURNS, cost, PLANNED, RATE, RANDOM, EARLIER, *PAPER))


def racing_columns() -> tuple[Column, ...]:
    """Columns of Car-Racing's tables, where the limit is undiscounted and the paper's return discounted."""
    returns = ("discounted return", key("discounted_return")), ("undiscounted return", key("return"))
    skids: Column = ("skids (limit 0)", key("cost"))
    return (*returns, skids, PLANNED, RATE, RANDOM, EARLIER)


@figure
def carracing_table() -> str:
    """README: Car-Racing, one seed."""
    entries = [
        Entry("**CAP, `conformal`** (ours; ε = .4)", "carracing/worth-0.4", None, ROWS["carracing-cap-adam"]),
        Entry("the same, ε = .05", "carracing/worth-0.05"),
        Entry("PPO", "carracing/ppo", None, ROWS["carracing-ppo-200k"]),
        Entry("PPO-Lagrangian", "carracing/ppo-lag", None, ROWS["carracing-ppo-lag-200k"]),
        Entry("FOCOPS", "carracing/focops", None, ROWS["carracing-focops-200k"]),
    ]
    return lines(entries, (LABEL, SEEDS, *racing_columns(), *PAPER))


@figure
def carracing_rules_table() -> str:
    """The rules for κ on Car-Racing."""
    entries = [
        Entry("**`conformal`, ε = .4**", "carracing/worth-0.4", None, ROWS["carracing-cap-adam"]),
        Entry("`conformal`, ε = .05", "carracing/worth-0.05"),
        Entry("`adam`, m = 100: hardly careful", "carracing/adam-100"),
        Entry("`adam`, m = 1,000: 93 episodes only", "carracing/adam-1000"),
        Entry("`adam`, m = 10,000: stands still", "carracing/adam-10000"),
    ]
    return lines(entries, (LABEL, SEEDS, *racing_columns(), *PAPER))


@figure
def carracing_whole_table() -> str:
    """Mean and median from the 70th episode on, of the two runs of 200,000 frames that drive."""
    rows = []
    for label, group in {"`conformal`, ε = .4": "carracing/worth-0.4", "ε = .05": "carracing/worth-0.05"}.items():
        (run,) = stored.group(group)
        cells = []
        for name in ("return", "discounted_return", "cost"):
            mean, median = middle(run, SETTLED, name)
            cells += [words.number(mean, 1 + (name == "cost")), words.number(median, 1)]
        tail = [row for row in run.planned if row["episode"] >= SETTLED]
        cells.append(f"{sum(bool(row['violation']) for row in tail)} of {len(tail)}")
        rows.append([label, *cells])
    headings = [
        f"from episode {SETTLED} on", "return: mean", "median", "discounted return: mean", "median", "skids: mean",
        "median", "violating",
    ]  # fmt: skip
    return words.table(headings, rows)


@figure
def carracing_tens_table() -> str:
    """Each ten episodes of the run with ε = .4, from the 70th on."""
    (run,) = stored.group("carracing/worth-0.4")
    rows = []
    for first in range(SETTLED, len(run.rows) - 9, 10):
        part = run._replace(rows=tuple(row for row in run.rows if first <= row["episode"] < first + 10))
        means = [words.number(last(part, name), 1) for name in ("discounted_return", "return", "cost")]
        rows.append([f"{first} to {first + 9}", *means, words.number(planned_violations(part))])
    return words.table(["episodes", "discounted return", "undiscounted return", "skids", "violating"], rows)


@figure
def carracing_skids() -> str:
    """How many violating planned episodes have one skid, two, three, and more."""
    (run,) = stored.group("carracing/worth-0.4")
    skids = [int(row["cost"]) for row in run.planned if row["violation"]]
    few = ", ".join(f"{skids.count(n)} have {n}" for n in (1, 2, 3))
    return f"{few}, and {sum(n > 3 for n in skids)} have more (at most {max(skids)})"


SUPERSEDED = {
    "residuals, ε = .4": "residuals-0.4",
    "residuals, ε = .05": "residuals-0.05",
    "shares of safe steps, ε = .4": "shares-0.4",
    "shares of safe steps, ε = .05": "shares-0.05",
    "`adam`, no floor, m = 10,000": "adam-ef24777",
    "shares of good plans, ε = .4": "plans-0.4",
    "shares of good plans, ε = .05": "plans-0.05",
    "the same, moved by counts, ε = .4": "counts-0.4",
    "the same, moved by counts, ε = .05": "counts-0.05",
    "careful once the limit is broken, shifted images, ε = .4": "careful-0.4",
    "the same, ε = .05": "careful-0.05",
    "careful as far as the limit was broken, at ¾ of ε = .4": "raised-0.4",
    "good plans, random actions that are held, ε = .4": "held-0.4",
}


@figure
def carracing_superseded_table() -> str:
    """The runs before, in their order."""
    rows = []
    for label, name in SUPERSEDED.items():
        (run,) = stored.group(f"superseded/carracing/{name}")
        means = [words.number(last(run, what), 1) for what in ("discounted_return", "return", "cost")]
        cost = sum(row["cost"] for row in run.planned) / len(run.planned)
        middle_return = words.number(middle(run, SETTLED, "return")[1], 1)
        violating = f"{planned_violations(run)} of {len(run.planned)}"
        cells = [
            middle_return,
            words.number(cost, 1),
            violating,
            words.percent(planned_rate([run])),
            random_words([run]),
        ]
        rows.append([label, words.number(len(run.rows)), *means, *cells])
    headings = [
        "what κ follows", "episodes", "discounted return, last 10", "undiscounted return, last 10", "skids, last 10",
        f"median undiscounted return from episode {SETTLED} on", "mean skids, planned", "violating planned episodes",
        "their share", "violating random episodes",
    ]  # fmt: skip
    return words.table(headings, rows)


@figure
def cheetah_superseded_table() -> str:
    """Earlier runs on HalfCheetah, which the rule was changed after."""
    entries = [
        Entry("`conformal`, ae05fd6, 36 episodes", "superseded/halfcheetah/conformal-ae05fd6"),
        Entry("`conformal`, c583b63", "superseded/halfcheetah/conformal-c583b63"),
        Entry("`conformal`, 2d23230", "superseded/halfcheetah/conformal-2d23230"),
        Entry("`adam`, ae05fd6, 30 episodes", "superseded/halfcheetah/adam-ae05fd6"),
        Entry("FOCOPS, 1b54ede, a third of the step of ν", "superseded/halfcheetah/focops-1b54ede"),
    ]
    cost: Column = ("discounted cost (limit 152)", key("discounted_cost"))
    return lines(entries, (LABEL, SEEDS, *RETURNS, cost, PLANNED, RATE, RANDOM))


@figure
def runs_table(experiment: str) -> str:
    """Command, code, machine and time of each group of runs of an experiment."""
    rows = []
    for name, facts in stored.read_json("runs.json").items():
        if name.startswith(f"{experiment}/"):
            runs = stored.group(name)
            code = ", ".join(sorted({run.config["commit"][:7] for run in runs}))
            seconds = sorted(round(run.rows[-1]["time"]["seconds"]) for run in runs)
            time = f"{seconds[0]:,}" if seconds[0] == seconds[-1] else f"{seconds[0]:,} to {seconds[-1]:,}"
            episodes = "; ".join(
                filter(None, [words.listed(sorted({len(run.rows) for run in runs})), facts.get("incomplete")])
            )
            folder, folders = f"`{name}-SEED`", words.seeds([run.config["seed"] for run in runs])
            rows.append(
                [
                    f"{folder}, {folders}",
                    f"`{facts['command']}`",
                    code,
                    facts["machine"],
                    time,
                    episodes,
                    words.listed(facts["earlier"]),
                ]
            )
    headings = ["folder", "command", "code", "machine", "seconds", "episodes", "earlier runs of these seeds"]
    return words.table(headings, rows)


@figure
def settled_share(group: str, bound: str) -> str:
    """Violating planned episodes from an episode on (one seed)."""
    (run,) = stored.group(group)
    values = from_episode(run, int(bound), "violation")
    return f"{sum(map(bool, values))} of {len(values)}"
