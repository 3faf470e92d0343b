"""Rules that choose κ, the weight of the uncertainty penalty: one file each, and one line in `rules.py`.

`base`, `binary` and `checked` are no rules but what rules share; `damped` and `fixed` are chosen by methods, not by name.
"""
