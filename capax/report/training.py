"""How did runs go? Return, cost and κ over episodes, several runs in one picture.

python -m capax.report.training OUT.png RUN [RUN ...]
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from capax.runs import folder
from capax.runs.run import Run

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FAR = 30.0
"""Limits (or units, if that is less) above which costs are drawn on a logarithmic scale."""
COLOURS = ("#1f5fbf", "#d1495b", "#2a9d5c", "#8d6cab", "#e0a030")


def curves(runs: list[Run]) -> bytes:
    """A PNG: return, cost beside the limit (violations and interrupted episodes marked) and κ, or κ·m where m differs; runs
    of the same method share a colour."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    colours: dict[str, str] = {}
    stopped, several = 0, len({run.config.get("violation_rate") for run in runs}) > 1
    alike = len({*map(_multiplier, runs)}) == 1
    for run in runs:
        config, rows = run.config, run.episodes
        name = config["method"] if config["kappa"] is None else f"{config['method']}, κ {config['kappa']}"
        name += f", ε {config['violation_rate']:g}" if several and config["kappa"] == "conformal" else ""
        fresh = name not in colours
        colour = colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])
        cost = "discounted_cost" if config["discounted"] else "cost"
        x = [row["steps"] / 1000 for row in rows]
        look: dict[str, Any] = {"color": colour, "lw": 1.3, "label": name if fresh else None}
        earned = "discounted_return" if config["kind"] == "image" else "return"  # as the paper's tables have it
        axes[0].plot(x, [row[earned] for row in rows], **look)
        axes[1].plot(x, [row[cost] for row in rows], **look)
        over = [(at, row[cost]) for at, row in zip(x, rows, strict=True) if row["violation"]]
        axes[1].scatter([at for at, _ in over], [paid for _, paid in over], s=14, color=colour, zorder=3)
        cut = run.interrupted
        axes[1].scatter([r["steps"] / 1000 for r in cut], [r[cost] for r in cut], s=26, marker="x", lw=1, color=colour)
        stopped += len(cut)
        unit = 1.0 if alike else _multiplier(run)
        axes[2].plot(x, [np.nan if row["kappa"] is None else unit * row["kappa"] for row in rows], **look)
        if config["cost_limit"] is not None:
            axes[1].axhline(config["cost_limit"], color="0.3", lw=1, ls="--")
    marks = "dots: above the limit" + (", crosses: interrupted" if stopped else "")
    for axis, title in zip(axes, (earned, f"{cost} ({marks})", "κ" if alike else "κ·m"), strict=True):
        axis.set_title(title.replace("_", " "), fontsize=10)
        axis.set_xlabel("thousand steps")
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    limits = [run.config["cost_limit"] for run in runs if run.config["cost_limit"] is not None]
    unit = max([1.0, *limits])
    if axes[1].get_ylim()[1] > FAR * unit:  # one bad episode would hide all others
        axes[1].set_yscale("symlog", linthresh=unit)
        axes[1].set_ylim(bottom=-0.2 * unit)
    seeds = sorted({run.config["seed"] for run in runs})
    figure.suptitle(
        f"{runs[0].config['task']}, preset {runs[0].config['preset']}, seeds {seeds}, code {_code(runs)}", fontsize=10
    )
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    plt.close(figure)
    return file.getvalue()


def _multiplier(run: Run) -> float:
    """m of an image agent, which its κ is multiplied with; elsewhere 1."""
    return float((run.config.get("settings") or {}).get("rssm", {}).get("multiplier", 1.0))


def _code(runs: list[Run]) -> str:
    return ", ".join(sorted({str(run.config["commit"])[:7] for run in runs}))


if __name__ == "__main__":
    folder.write(Path(sys.argv[1]), curves([Run(Path(name)) for name in sys.argv[2:]]))
