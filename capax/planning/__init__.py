"""Planners; they know no network, only what a model imagines."""
