"""Models that learn the world from data: each has `init`, `fit` (or `update`) and `rollout`."""
