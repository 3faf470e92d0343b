"""Which sizes does a run have? The paper's, or fewer model evaluations for two CPU cores."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from capax.agents.pets import PetsSettings
from capax.errors import InputError
from capax.models.ensemble import EnsembleSettings
from capax.planning.ccem import CEM

PRESETS = {
    "paper": PetsSettings(),
    "fast": PetsSettings(
        ensemble=EnsembleSettings(layers=3, particles=5, least_updates=300, most_updates=600),
        cem=CEM(horizon=20, iterations=3, population=64, elites=10, colour=0.5, shrink=1.3, keep=0.3, execute="best"),
        start_steps=300,
        fit_every=300,
    ),
}
"""`paper`: the hyper-parameter table and the published code. `fast`: the same algorithm with about a hundredth of the
model evaluations per plan."""


def settings_for(preset: str, changes: Mapping[str, Any] | None = None) -> PetsSettings:
    """A preset with some of its fields changed; the names are those of `PetsSettings`, `EnsembleSettings` and `CEM`."""
    if preset not in PRESETS:
        raise InputError(f"the preset is {preset!r}: choose {' or '.join(PRESETS)}.")
    settings = PRESETS[preset]
    parts: dict[str, Any] = {"ensemble": settings.ensemble, "cem": settings.cem}
    homes = {f.name: part for part, value in parts.items() for f in fields(value)}
    homes |= {f.name: "" for f in fields(settings) if f.name not in parts}
    changed: dict[str, dict[str, Any]] = {"": {}, "ensemble": {}, "cem": {}}
    for name, value in (changes or {}).items():
        if name not in homes:
            known = difflib.get_close_matches(name, homes, 3, 0.5) or homes
            raise InputError(f"there is no setting {name!r}: did you mean {' or '.join(known)}?")
        home = homes[name]
        changed[home][name] = typed(name, value, getattr(parts.get(home, settings), name))
    new = {part: replace(value, **changed[part]) for part, value in parts.items()}
    return replace(settings, **new, **changed[""])


def typed(name: str, value: Any, before: Any) -> Any:
    """The value as the setting's type, or a sentence that says which it should be."""
    whole = isinstance(before, int)
    if isinstance(before, bool | str):
        if not isinstance(value, type(before)):
            raise InputError(f"{name} is {value!r}: give {'True or False' if isinstance(before, bool) else 'a word'}.")
        return value
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (whole and value != int(value)):
        raise InputError(f"{name} is {value!r}: give a {'whole ' if whole else ''}number.")
    return int(value) if whole else float(value)
