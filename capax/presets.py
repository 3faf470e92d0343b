"""Which sizes does a run have? The paper's, or fewer model evaluations for two CPU cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from capax.agents.onpolicy import OnPolicySettings
from capax.agents.pets import PetsSettings
from capax.agents.planet import PlanetSettings
from capax.checks import nearest, shown, word
from capax.errors import InputError
from capax.models.ensemble import EnsembleSettings
from capax.models.rssm import RSSMSettings
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

GRADIENT_PRESETS = {
    "ppo": OnPolicySettings(),
    "ppo-lag": OnPolicySettings(),
    "focops": OnPolicySettings(decay=1e-3, farthest=0.02),
}
"""Of the policy-gradient methods, which have one each, whatever the preset: they run on two CPU cores as they are."""

IMAGE_PRESETS = {
    "paper": PlanetSettings(),
    "fast": PlanetSettings(
        rssm=RSSMSettings(deter=64, stoch=16, hidden=64, depth=8, batch=16, chunk=6, updates=60, learning_rate=3e-3),
        cem=CEM(
            horizon=10,
            iterations=4,
            population=100,
            elites=12,
            smoothing=0.0,
            spread=1.0,
            colour=0.5,
            keep=0.3,
            execute="best",
        ),
        start_steps=500,
    ),
}
"""The same for images."""


def settings_for(preset: str, changes: Mapping[str, Any] | None = None, presets: Mapping[str, Any] = PRESETS) -> Any:
    """A preset with some of its fields changed; the names are those of the agent's settings and of their parts."""
    settings = presets[word("the preset", preset, tuple(presets))]
    if changes is not None and not isinstance(changes, Mapping):
        raise InputError(f"settings is {shown(changes)}: give names with values, as in {{'population': 200}}.")
    parts: dict[str, Any] = {f.name: v for f in fields(settings) if is_dataclass(v := getattr(settings, f.name))}
    homes = {f.name: part for part, value in parts.items() for f in fields(value)}
    homes |= {f.name: "" for f in fields(settings) if f.name not in parts}
    changed: dict[str, dict[str, Any]] = {part: {} for part in ("", *parts)}
    for name, value in (changes or {}).items():
        if not isinstance(name, str) or name not in homes:
            raise InputError(f"there is no setting {shown(name)}: {_hint(name, homes)}")
        changed[homes[name]][name] = value
    new = {part: replace(value, **changed[part]) for part, value in parts.items()}
    settings = replace(settings, **new, **changed[""])
    if changed.get("cem", {}).get("keep") and int(settings.cem.keep * settings.cem.elites) == 0:
        keep, elites = settings.cem.keep, settings.cem.elites
        raise InputError(f"keep is {keep} of {elites} elites, which is none: give 0, or at least {1.0 / elites:g}.")
    return settings


def _hint(name: Any, known: Mapping[str, str]) -> str:
    near = nearest(name, known) if isinstance(name, str) else []
    return f"did you mean {' or '.join(near)}?" if near else f"choose {', '.join(known)}."
