"""Contracts between the parts, and the loop of Algorithm 1."""
