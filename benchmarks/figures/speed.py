"""Tables of what the benchmarks have measured, each with its machine, commit and command."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import stored, words
from benchmarks.figures.registry import figure


def measurement(name: str) -> dict[str, Any]:
    """A file of `results/speed/`, also one that `capax bench --json` has printed."""
    table = stored.read_json(f"speed/{name}.json")
    return from_bench(table) if "rows" in table else table


def from_bench(table: dict[str, Any]) -> dict[str, Any]:
    """What `capax bench --json` prints, in the form of the other measurements."""
    facts, figures = table["machine"], []
    for row in table["rows"]:
        share = row["share_of_floor"]
        line = {"what": f"{row['part']}: {row['name']}", "figure": row["value"], "unit": row["unit"]}
        of_floor = None if share is None else f"{100 * share:.3g} %"
        figures.append({**line, "evaluations/s": row["evaluations_per_second"], "of floor": of_floor})
    place = {"processor": facts["device"], "cores": facts["cores"], "versions": {"jax": facts["jax"]}}
    return {
        "command": table["command"],
        "commit": table["commit"],
        "machine": place,
        "transcribed": False,
        "figures": figures,
    }


def machine(table: dict[str, Any]) -> str:
    """The machine in words."""
    facts = table["machine"]
    parts = [facts["processor"], f"{facts['cores']} core{'s' * (facts['cores'] != 1)}", facts.get("accelerator")]
    parts += [f"{package} {version}" for package, version in facts["versions"].items()]
    if (facts.get("load") or 0.0) > facts["cores"]:
        parts.append(f"load of all processes {facts['load']:g} at the end")
    return ", ".join(filter(None, parts))


def cell(value: Any) -> str:
    """A cell: numbers with three significant digits, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, float):
        return words.number(value) if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@figure
def speed_table(name: str) -> str:
    """A measurement: where it comes from, then its rows."""
    table = measurement(name)
    rows = table["figures"]
    headings = list(rows[0])
    source = [f"`{table['command']}`", f"commit {table['commit'][:7]}", machine(table)]
    source += ["with uncommitted changes"] * bool(table.get("changed"))
    source += ["transcribed: the raw output was not kept"] * table["transcribed"]
    note = f" {table['note']}" if table.get("note") else ""
    return f"{'; '.join(source)}.{note}\n\n" + words.table(headings, ([cell(row[h]) for h in headings] for row in rows))


@figure
def speed(name: str, row: str, *column: str) -> str:
    """A cell of a measurement: the number of its row, and the name of its column."""
    return cell(measurement(name)["figures"][int(row)][" ".join(column)])


@figure
def run_speed(group: str) -> str:
    """Steps a second of planned episodes of committed runs, with their fits, without the slowest and the fastest tenth."""
    rates = sorted(row["time"]["steps_per_second"] for run in stored.group(group) for row in run.planned)
    edge = len(rates) // 10
    return f"{words.number(rates[edge])} to {words.number(rates[-1 - edge])}"


@figure
def speed_sum(name: str, column: str) -> str:
    """The sum of a column of a measurement."""
    return words.number(sum(row[column] for row in measurement(name)["figures"]))
