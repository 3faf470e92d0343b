"""Learning curves of training runs: return, cost and κ over steps, several runs in one picture."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
import numpy as np

from capax.reporting.style import own_style, plain
from capax.runs.run import Run

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MAX_LINEAR_LIMITS = 30.0
"""Costs above this multiple of the largest limit (or of 1, if that is larger) are drawn on a logarithmic scale."""
COLOURS = ("#1f5fbf", "#d1495b", "#2a9d5c", "#8d6cab", "#e0a030")


@own_style()
def draw_curves(runs: list[Run]) -> bytes:
    """Draw return, cost and κ of runs as a PNG.

    Plain and discounted return have a panel each where the limit, or the paper's returns, are discounted. The cost panel
    shows the limit and marks violations (hollow in random episodes) and interrupted episodes. The last panel shows κ, or
    κ·m if the multipliers m differ. Runs of the same method have the same colour.
    """
    returns = max((run.config.return_names for run in runs), key=len)
    panels = len(returns) + 2
    figure, every = plt.subplots(1, panels, figsize=(4 * panels, 3.4), layout="constrained")
    axes = every[-3:]  # those of the last return, of the cost and of κ
    colours: dict[str, str] = {}
    interrupted_count, random_count, rates_differ = 0, 0, len({run.config.violation_rate for run in runs}) > 1
    same_multiplier = len({*map(_multiplier, runs)}) == 1
    for run in runs:
        config, rows = run.config, run.episodes
        name = config.method if config.kappa is None else f"{config.method}, κ {config.kappa}"
        name += f", ε {config.violation_rate:g}" if rates_differ and config.kappa == "conformal" else ""
        first_of_method = name not in colours
        colour = colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])
        cost_key = config.cost_name
        x = [row["steps"] / 1000 for row in rows]
        style: dict[str, Any] = {"color": colour, "lw": 1.3, "label": plain(name) if first_of_method else None}
        for axis, return_key in zip(every, returns, strict=False):
            axis.plot(x, [row.get(return_key, np.nan) for row in rows], **style)
        axes[1].plot(x, [row[cost_key] for row in rows], **style)
        for is_random, fill in ((False, colour), (True, "none")):
            violations = [
                (step, row[cost_key])
                for step, row in zip(x, rows, strict=True)
                if row["violation"] and (row.get("phase") == "random") == is_random
            ]
            random_count += is_random * len(violations)
            at = [step for step, _ in violations], [cost for _, cost in violations]
            axes[1].scatter(*at, s=14, facecolors=fill, edgecolors=colour, zorder=3)
        interrupted = run.interrupted
        interrupted_at = [row["steps"] / 1000 for row in interrupted]
        interrupted_costs = [row[cost_key] for row in interrupted]
        axes[1].scatter(interrupted_at, interrupted_costs, s=26, marker="x", lw=1, color=colour)
        interrupted_count += len(interrupted)
        kappa_unit = 1.0 if same_multiplier else _multiplier(run)
        axes[2].plot(x, [np.nan if row["kappa"] is None else kappa_unit * row["kappa"] for row in rows], **style)
        if config.cost_limit is not None:
            axes[1].axhline(config.cost_limit, color="0.3", lw=1, ls="--")
    marks = "dots: above the limit" + (", hollow: random" if random_count else "")
    marks += ", crosses: interrupted" if interrupted_count else ""
    for axis, title in zip(every, (*returns, f"{cost_key} ({marks})", "κ" if same_multiplier else "κ·m"), strict=True):
        axis.set_title(title.replace("_", " "), fontsize=10)
        axis.set_xlabel("thousand steps")
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    limits = [run.config.cost_limit for run in runs if run.config.cost_limit is not None]
    limit_unit = max([1.0, *limits])
    # on a linear scale, one bad episode would hide all others
    if axes[1].get_ylim()[1] > MAX_LINEAR_LIMITS * limit_unit:
        axes[1].set_yscale("symlog", linthresh=limit_unit)
        axes[1].set_ylim(bottom=-0.2 * limit_unit)
    seeds = sorted({run.config.seed for run in runs})
    figure.suptitle(
        plain(f"{runs[0].config.task}, preset {runs[0].config.preset}, seeds {seeds}, code {_commits(runs)}"),
        fontsize=10,
    )
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    plt.close(figure)
    return file.getvalue()


def _multiplier(run: Run) -> float:
    """The factor m of an image agent's κ; 1 for other agents."""
    return float(run.config.setting("multiplier", 1.0))


def _commits(runs: list[Run]) -> str:
    """The short hashes of the commits that made the runs."""
    return ", ".join(sorted({str(run.config.commit)[:7] for run in runs}))
