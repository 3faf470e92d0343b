"""Rebuilds the figures in README and docs from committed files: `make figures`. It reads files and trains nothing."""
