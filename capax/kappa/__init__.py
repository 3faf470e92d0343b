"""Rules that choose κ, the weight of the uncertainty penalty: one file each, and one line in `rules.py`."""
