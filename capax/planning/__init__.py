"""Planners. They import no network and read only what a model imagines."""
