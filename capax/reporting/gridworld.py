"""Table, curves and world picture of the gridworld experiment, made from its files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from numpy import ndarray as Array
from rich import box
from rich.table import Table

from capax.agents.finite_worlds import LIMIT
from capax.paper.gridworld import PAPER_RESULTS, Settings
from capax.reporting.style import own_style

METHOD_COLOURS = {
    ("oracle", None): "#222222",
    ("calibrated", None): "#dc2626",
    ("cap", "adaptive"): "#6d28d9",
    ("cap", 0.1): "#15803d",
    ("cap", 0.05): "#2563eb",
    ("cap", 0.01): "#f59e0b",
    ("cap", 0.0): "#94a3b8",
}
SPARE_COLOURS = ("#65a30d", "#be185d", "#a16207", "#4338ca")
"""Colours of values of κ that are not in the paper."""
DIGITS = (3, 4, 2)
"""Decimal places of return, cost and violations."""
SIDE_BY_SIDE_WIDTH = 126
"""Terminal width, in columns, of the results and the paper's numbers in one table."""
ACTION_TRIANGLES = {
    0: ((0, 0), (1, 0), (0.5, 0.5)),  # up
    1: ((0, 1), (1, 1), (0.5, 0.5)),  # down
    2: ((0, 0), (0, 1), (0.5, 0.5)),  # left
    3: ((1, 0), (1, 1), (0.5, 0.5)),  # right
}
"""The triangle of a cell that shows an action, as (x, y) from the cell's upper left corner."""
ACTION_ARROWS = {0: (0.0, -1.0), 1: (0.0, 1.0), 2: (-1.0, 0.0), 3: (1.0, 0.0)}
"""Direction (x, y) of the arrow of an action."""


def display_name(method: str, kappa: Any) -> str:
    """The name of a method in tables and legends."""
    if method == "cap":
        return "CAP adaptive (PI)" if kappa == "adaptive" else f"CAP κ = {kappa:g}"
    return {"oracle": "oracle", "calibrated": "CAP calibrated"}[method]


def text_tables(rows: Sequence[Mapping[str, Any]], settings: Settings, width: int) -> list[Table]:
    """Tables of the results and of the paper's numbers: one table if the terminal is wide enough, else two."""
    title = (
        f"{settings.worlds} worlds of seed {settings.seed}, slip {settings.slip}: policy {settings.iterations}, "
        f"violations of policies 0 to {settings.iterations} (limit {LIMIT}); mean ± sd over worlds"
    )
    ours = [(display_name(row["method"], row["kappa"]), *_cells(row)) for row in rows]
    paper = [_paper_cells(row) for row in rows]
    headings = ("", "return", "cost", "violations", "of oracle")
    if width >= SIDE_BY_SIDE_WIDTH:
        joined = [(*mine, *theirs) for mine, theirs in zip(ours, paper, strict=True)]
        return [_table(title, (*headings, "paper: return", "cost", "violations"), joined)]
    paper_rows = [(mine[0], *theirs) for mine, theirs in zip(ours, paper, strict=True) if theirs[0] != "–"]
    return [
        _table(title, headings, ours),
        *([_table("the paper's numbers", headings[:4], paper_rows)] if paper_rows else []),
    ]


def _table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """A table with these headings and lines of cells."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row of results."""
    columns = zip(("return", "cost", "violations"), DIGITS, strict=True)
    cells = [f"{row[f'{what}_mean']:.{d}f} ± {row[f'{what}_sd']:.{d}f}" for what, d in columns]
    return [*cells, f"{100 * row['oracle_share']:.1f} %"]


def _paper_cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of the paper's numbers for a method, dashes if it has none."""
    paper = PAPER_RESULTS.get((row["method"], row["kappa"]))
    if paper is None:
        return ["–"] * 3
    return [f"{paper[2 * i]:.{d}f} ± {paper[2 * i + 1]:.{d}f}" for i, d in enumerate(DIGITS)]


@own_style()
def draw_curves(rows: Sequence[Mapping[str, Any]], caption: str) -> bytes:
    """The PNG `figure.png`: return, cost, cumulative violations and κ over iterations, mean and sd over worlds."""
    series: dict[tuple[str, Any], dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        series.setdefault((row["method"], row["rule"]), {}).setdefault(row["iteration"], []).append(row)
    spare_colours = iter(SPARE_COLOURS * 100)
    colours = {key: METHOD_COLOURS[key] if key in METHOD_COLOURS else next(spare_colours) for key in series}
    last = max(max(by_iteration) for by_iteration in series.values())
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    panels = figure.subplots(1, 4)
    titles = ("Return", f"Cost (limit {LIMIT})", "Cumulative violations", "κ (calibrated: z)")
    for panel, title, column in zip(panels, titles, ("return", "cost", "violations", "kappa"), strict=True):
        for key, by_iteration in series.items():
            if column not in by_iteration[0][0]:
                continue
            x = np.array(sorted(by_iteration))
            y = np.array([[row[column] for row in by_iteration[i]] for i in x], dtype=float)  # [iterations, worlds]
            if key[0] == "oracle":  # the oracle does not learn: its one value is drawn as a horizontal line
                x, y = np.array([0, max(last, 1)]), np.repeat(y[:1], 2, axis=0)
            mean, sd = y.mean(1), y.std(1)
            style = "--" if key[0] == "oracle" else "-"
            panel.plot(
                x, mean, style, color=colours[key], lw=2.2 if key[0] == "calibrated" else 1.5, label=display_name(*key)
            )
            if key[0] != "oracle":
                low = np.maximum(mean - sd, 0.0)
                panel.fill_between(x, low, mean + sd, color=colours[key], alpha=0.07, lw=0)
        panel.set_title(title, fontsize=11)
        panel.set_xlabel("iteration")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, lw=0.5)
        panel.margins(x=0.01)
    limit = panels[1].axhline(LIMIT, color="#222222", lw=1.0, ls=":")
    panels[2].set_ylim(bottom=-0.3)
    panels[3].set_yscale("symlog", linthresh=0.01)
    panels[3].set_ylim(bottom=-0.002)
    handles, labels = panels[0].get_legend_handles_labels()
    handles, labels = [*handles, limit], [*labels, "cost limit"]
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 8), frameon=False, fontsize=9)
    figure.suptitle(f"{caption}: mean and standard deviation over worlds", fontsize=9, color="#64748b")
    return _to_png(figure)


@own_style()
def draw_world(world: Mapping[str, Any]) -> bytes:
    """The PNG `world.png`: costs and rewards of one world, and the last policy of up to four methods."""
    size, entries = world["size"], _compared_policies(world["policies"])
    columns = 1 + (len(entries) + 1) // 2
    figure = Figure(figsize=(3.5 * columns + 0.6, 7.2), layout="constrained")
    panels = figure.subplots(2, columns, squeeze=False)
    for panel, key, title, colours in (
        (panels[0, 0], "c", "cost c(s, a)", "Reds"),
        (panels[1, 0], "r", "reward r(s, a)", "Greens"),
    ):
        picture = _draw_triangles(panel, np.array(world[key]), size, colours)
        figure.colorbar(picture, ax=panel, shrink=0.8, location="left")
        panel.set_title(title, fontsize=11)
    max_visits = max(np.array(entry["occupancy"]).sum(1).max() for entry in entries)
    policy_panels = [panels[i // (columns - 1), 1 + i % (columns - 1)] for i in range(2 * (columns - 1))]
    for panel, entry in zip(policy_panels, entries, strict=False):
        visits = np.array(entry["occupancy"]).sum(1)
        shade = panel.imshow(
            np.sqrt(visits).reshape(size, size),
            cmap="Blues",
            vmin=0,
            vmax=np.sqrt(max_visits),
            extent=(0, size, size, 0),
        )
        _draw_arrows(panel, np.array(entry["policy"]), visits, size)
        panel.set_title(
            f"{display_name(entry['method'], entry['kappa'])}\nreturn {entry['return']:.3f}, cost {entry['cost']:.4f}",
            fontsize=11,
        )
    for panel in policy_panels[len(entries) :]:
        panel.set_visible(False)
    if entries:
        bar = figure.colorbar(shade, ax=list(panels[:, -1]), shrink=0.5)
        ticks = np.array([0.0, 0.05, 0.25, 1.0]) * max_visits
        bar.set_ticks(list(np.sqrt(ticks)), labels=[f"{tick:.3f}" for tick in ticks])
        bar.set_label("occupancy of a cell (square-root scale)")
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[], xlim=(0, size), ylim=(size, 0), aspect="equal")
    return _to_png(figure)


def _compared_policies(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The policies that the picture compares: those of four standard methods, or the first four if none of these ran."""
    standard = [("oracle", None), ("cap", 0.0), ("cap", "adaptive"), ("calibrated", None)]
    by_method = {(entry["method"], entry["kappa"]): entry for entry in entries}
    return [by_method[key] for key in standard if key in by_method] or list(entries[:4])


def _draw_triangles(panel: Any, values: Array, size: int, colours: str) -> PolyCollection:
    """Draw each cell as four triangles, one per action, coloured by value."""
    shapes = [
        [(x + s % size, y + s // size) for x, y in ACTION_TRIANGLES[a]]
        for s in range(values.shape[0])
        for a in range(values.shape[1])
    ]
    picture = PolyCollection(shapes, array=values.ravel(), cmap=colours, edgecolors="white", linewidths=0.3)
    panel.add_collection(picture)
    return picture


def _draw_arrows(panel: Any, policy: Array, visits: Array, size: int) -> None:
    """Draw an arrow for each action with probability > ¼. Length ∝ probability; arrows on dark cells are light."""
    s, a = np.nonzero(policy > 0.25)
    length = 0.6 * policy[s, a]
    steps = np.array([ACTION_ARROWS[int(i)] for i in a]).reshape(-1, 2) * length[:, None]
    light = np.sqrt(visits[s]) > 0.6 * np.sqrt(visits.max())
    panel.quiver(
        s % size + 0.5,
        s // size + 0.5,
        steps[:, 0],
        steps[:, 1],
        angles="xy",
        pivot="mid",
        scale_units="xy",
        scale=1,
        width=0.006,
        headwidth=4.5,
        headlength=4.5,
        headaxislength=4,
        color=np.where(light, "#ffffff", "#1e293b"),
    )


def _to_png(figure: Figure) -> bytes:
    """The figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
