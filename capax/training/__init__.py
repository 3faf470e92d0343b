"""From an environment and a limit to a run folder."""
