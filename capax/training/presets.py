"""Presets: sizes of a method under one name. `paper` is what the settings' defaults are; `fast` is for two CPU cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

import jax

from capax.core.checks import nearest, short_repr
from capax.core.contracts import Kind
from capax.core.errors import InputError
from capax.core.registry import Registry
from capax.core.settings import values_of
from capax.kappa.base import MAX_KAPPA


@dataclass(frozen=True)
class Preset:
    """Settings that differ from those of another preset.

    `capax.register(Preset("tiny", {"population": 20}, base="fast"))` adds one.
    """

    name: str
    settings: Mapping[str, Any]
    """Names and values, as for `--set`."""
    image: Mapping[str, Any] | None = None
    """Replaces `settings` for tasks with images; None: the same."""
    budget: Mapping[str, Any] = field(default_factory=dict)
    """What differs in addition under an undiscounted limit, for tasks with vectors."""
    base: str = "paper"
    """The preset that is changed."""
    kappa: str | None = None
    """The rule for κ where the user names none; None: that of the base, or else the default of the kind of task."""
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters of rules for κ that differ, by the name of the rule."""
    methods: tuple[str, ...] | None = None
    """Methods that it changes; others keep their sizes. None: all that have these settings."""

    def changes(self, kind: Kind, budget: bool = False) -> Mapping[str, Any]:
        """Settings that it changes for a kind of task; `budget`: under an undiscounted limit."""
        if kind == "image":
            return self.settings if self.image is None else self.image
        return {**self.settings, **self.budget} if budget else self.settings


FAST: dict[str, Any] = dict(
    layers=3, particles=5, least_updates=300, most_updates=600, horizon=20, iterations=3, population=64, elites=10,
    colour=0.5, shrink=1.3, keep=0.3, execute="best", start_steps=300, fit_every=300,
)  # fmt: skip
FAST_IMAGE: dict[str, Any] = dict(
    deter=64, stoch=16, hidden=64, depth=8, batch=16, chunk=6, updates=60, learning_rate=3e-3, horizon=10, iterations=4,
    population=100, elites=12, colour=0.5, keep=0.3, execute="best", start_steps=500,
)  # fmt: skip
FAST_BUDGET: dict[str, Any] = dict(
    hidden=64, batch=64, least_updates=1000, most_updates=1000, balance=0.5, weight_decay=1e-3, horizon=40, execute="mean",
    sampled=0.25, cost_networks="own",
)  # fmt: skip
PUBLISHED: dict[str, Any] = dict(
    targets="raw", noise="squared", outcomes="sample", clamp=100.0, floor=0.0, least_updates=0, batches="passes",
    undiscounted_limit="pace", binary_costs="flag", termination_cost=0.0, ties="order", products="float32",
)  # fmt: skip
PUBLISHED_IMAGE: dict[str, Any] = dict(
    one_step="next", noise="own", pieces="anywhere", batch=50, chunk=49, signal_weight=1.0, floor=0.0, multiplier=10_000.0,
    hold=1, episodes_per_fit=1, clip=True, ties="order", products="float32",
)  # fmt: skip
PRESETS: Registry[Preset] = Registry(
    "preset",
    {
        "paper": Preset("paper", {}),
        "fast": Preset("fast", FAST, FAST_IMAGE, FAST_BUDGET),
        "published": Preset(
            "published", PUBLISHED, PUBLISHED_IMAGE, kappa="adam", rules={"adam": {"least": -MAX_KAPPA}}
        ),
    },
)
"""`paper`: the sizes of the hyper-parameter table with capax's own conventions, for a GPU. `published`: the same sizes with the
conventions of the authors' code (docs/published.md). `fast`: the conventions of `paper` with about a hundredth of the model
evaluations per plan."""


MAX_LISTED = 20
"""Names that a message lists; more of them would be no sentence."""


def default_preset() -> str:
    """`paper` where JAX computes on a GPU, `fast` elsewhere."""
    return "paper" if jax.default_backend() == "gpu" else "fast"


def preset_settings(settings: Any, method: str, kind: Kind, preset: str, budget: bool = False) -> Any:
    """A method's settings, changed as a preset says; `budget`: for an undiscounted limit."""
    chosen = PRESETS.find(preset)
    if preset != "paper":
        settings = preset_settings(settings, method, kind, chosen.base, budget)
    own = chosen.changes(kind, budget)
    applies = {*own} <= setting_names(settings) if chosen.methods is None else method in chosen.methods
    return changed(settings, own) if settings is not None and applies else settings


def preset_kappa(preset: str) -> str | None:
    """The rule for κ that a preset, or its base, names."""
    chosen = PRESETS.find(preset)
    return chosen.kappa if chosen.kappa is not None or preset == "paper" else preset_kappa(chosen.base)


def preset_rule(preset: str, kappa: str) -> dict[str, Any]:
    """Parameters of a rule that a preset or its base changes."""
    chosen = PRESETS.find(preset)
    base = {} if preset == "paper" else preset_rule(chosen.base, kappa)
    return {**base, **chosen.rules.get(kappa, {})}


def setting_names(settings: Any) -> set[str]:
    """Names of settings, and of those in their parts."""
    return set() if settings is None else {*values_of(settings)}


def as_changes(changes: Any) -> Mapping[str, Any]:
    """Changes of settings, checked to be names with values; None: no changes."""
    if changes is None:
        return {}
    if not isinstance(changes, Mapping):
        raise InputError(f"settings is {short_repr(changes)}: give names with values, as in {{'population': 200}}.")
    return changes


def changed(settings: Any, changes: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Any:
    """Settings with some of them changed. Names are those of the settings and of their parts; `more` are other valid names."""
    if settings is None:
        for name in changes:
            raise InputError(f"there is no setting {short_repr(name)}: {_hint(name, more or {})}")
        return None
    parts: dict[str, Any] = {f.name: v for f in fields(settings) if is_dataclass(v := getattr(settings, f.name))}
    homes = {f.name: part for part, value in parts.items() for f in fields(value)}
    homes |= {f.name: "" for f in fields(settings) if f.name not in parts}
    own: dict[str, dict[str, Any]] = {part: {} for part in ("", *parts)}
    for name, value in changes.items():
        if not isinstance(name, str) or name not in homes:
            raise InputError(f"there is no setting {short_repr(name)}: {_hint(name, {**homes, **(more or {})})}")
        own[homes[name]][name] = value
    settings = replace(settings, **{part: replace(value, **own[part]) for part, value in parts.items()}, **own[""])
    if own.get("cem", {}).get("keep") and int(settings.cem.keep * settings.cem.elites) == 0:
        keep, elites = settings.cem.keep, settings.cem.elites
        raise InputError(f"keep is {keep} of {elites} elites, which is none: give 0, or at least {1.0 / elites:g}.")
    return settings


def parse_settings(example: Any, saved: Mapping[str, Any]) -> Any:
    """Settings from what `config.json` holds; `example` shows which there are."""
    names = {f.name for f in fields(example)}
    if not isinstance(saved, Mapping) or set(saved) != names:
        differing = sorted(set(saved) ^ names) if isinstance(saved, Mapping) else ["all"]
        raise InputError(
            f"the run has other settings ({', '.join(differing)}) than this capax knows: use the capax that it was trained "
            "with."
        )
    values = {
        f.name: parse_settings(value, saved[f.name])
        if is_dataclass(value := getattr(example, f.name))
        else saved[f.name]
        for f in fields(example)
    }
    return type(example)(**values)


def setting_of(settings: Any, name: str, default: Any) -> Any:
    """A setting by its name, wherever in the parts it is; `default` if there is none."""
    return values_of(settings).get(name, default) if settings else default


def as_table(settings: Any) -> dict[str, Any]:
    """Settings as `config.json` holds them."""
    return {} if settings is None else asdict(settings)


def _hint(name: Any, names: Mapping[str, Any]) -> str:
    if not names:
        return "the method has none."
    near = nearest(name, names) if isinstance(name, str) else []
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"choose {', '.join(names)}." if len(names) <= MAX_LISTED else "capax settings lists them."
