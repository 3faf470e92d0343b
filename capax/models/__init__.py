"""Models that learn the world from data: `init`, `fit` and `rollout` each."""
