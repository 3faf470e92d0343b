"""Finite constrained MDPs: exact evaluation, exact optimum, learned models and bounds."""

from capax.tabular.cmdp import CMDP, Evaluation, evaluate, penalised, values
from capax.tabular.counts import CountModel, neighbour_prior, pooled_prior, self_loop_prior, uniform_prior
from capax.tabular.gridworld import World, gridworld
from capax.tabular.solvers import Solution, solve

__all__ = [
    "CMDP",
    "CountModel",
    "Evaluation",
    "Solution",
    "World",
    "evaluate",
    "gridworld",
    "neighbour_prior",
    "penalised",
    "pooled_prior",
    "self_loop_prior",
    "solve",
    "uniform_prior",
    "values",
]
