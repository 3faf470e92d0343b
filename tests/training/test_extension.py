"""Methods, presets, rules, loggers and tasks of a user's own are used like the built-in ones, without a change in capax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from support.small_settings import TINY_VECTOR
from support.tiny_runs import counting, train_tiny, without_times
from support.toy_envs import Toy, walk

import capax
from capax.core.errors import InputError
from capax.training.methods import METHODS
from capax.training.presets import PRESETS

# A method, and a preset of it.


@dataclass(frozen=True)
class SearchSettings:
    """Sizes of the random search."""

    start_steps: int = 10
    """Random steps before it."""
    spread: float = 0.3
    """How far from the best action it looks for a better one."""


class SearchState(NamedTuple):
    """The best action so far, what it earned within the limit, and the action that is tried now."""

    best: np.ndarray
    trial: np.ndarray
    earned: float
    trials: int


@dataclass(frozen=True)
class RandomSearch(capax.Agent[SearchState]):
    """Repeats one action for an episode, and keeps it if it earned more than the best one within the limit."""

    spec: capax.Spec
    size: int
    settings: SearchSettings

    def init(self, key: Any) -> SearchState:
        return SearchState(np.zeros(self.size), np.zeros(self.size), -np.inf, 0)

    def can_act(self, state: SearchState) -> bool:
        return state.trials > 0

    def begin(self, state: SearchState) -> Any:
        return state.trial

    def act(self, state: SearchState, carry: Any, obs: Any, key: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        return carry, carry, {"push": float(carry[0])}

    def learn(
        self, state: SearchState, episodes: Sequence[capax.Episode], key: Any
    ) -> tuple[SearchState, Mapping[str, Any]]:
        rng = np.random.default_rng(state.trials)
        trial = np.clip(state.best + self.settings.spread * rng.normal(size=self.size), -1.0, 1.0)
        return state._replace(trial=trial, trials=state.trials + 1), {"model_loss": 0.5}

    def adapt(self, state: SearchState, episode: capax.Episode) -> tuple[SearchState, Mapping[str, Any]]:
        if episode.random or episode.paid > self.spec.limit or episode.earned <= state.earned:
            return state, {}
        return state._replace(best=state.trial, earned=episode.earned), {"better": True}


def build_search(ingredients: capax.Ingredients) -> RandomSearch:
    """The agent of the method `search`."""
    return RandomSearch(ingredients.spec, ingredients.config.action_box.size, ingredients.settings)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    for registry in (METHODS, PRESETS):
        monkeypatch.setattr(registry, "_entries", dict(registry))


@pytest.fixture
def search(registries: None) -> None:
    """The method `search`, registered."""
    capax.register(capax.Method("search", build_search, {"vector": SearchSettings()}, summary="random search"))


def train_walk(out: Path, **options: Any) -> capax.Run:
    """A run in the random walk: five episodes of ten steps."""
    options = dict(steps=50, cost_limit=12.0, episode_steps=10) | options
    return capax.train(options.pop("env", walk), out=out, **options)


def stop_after(episodes: int) -> Callable[[Any], bool]:
    """An `on_episode` that stops the run after so many episodes."""
    return lambda row: np.bool_(row["episode"] + 1 < episodes)  # numpy's False stops a run too


def test_a_registered_method_is_trained_resumed_loaded_and_evaluated(search, tmp_path):
    whole = train_walk(tmp_path / "whole", method="search")
    assert [row["phase"] for row in whole.episodes] == ["random"] + ["plan"] * 4
    assert whole.config.method == "search" and whole.config.settings == {"start_steps": 10, "spread": 0.3}
    assert whole.episodes[1]["model_loss"] == 0.5 and -1.0 <= whole.episodes[1]["push"] <= 1.0
    cut = train_walk(tmp_path / "cut", method="search", on_episode=stop_after(3))
    assert len(cut.episodes) == 3
    capax.resume(cut, env=walk)
    assert without_times(cut.episodes) == without_times(whole.episodes)
    policy = capax.load(cut)
    unit = (policy(np.zeros(2))[0] - 1.0) / 2.0  # actions are from −1 to 3
    assert unit == pytest.approx(whole.episodes[-1]["push"])
    assert [row["length"] for row in capax.evaluate(cut, env=walk, episodes=2).rows] == [10, 10]


def test_a_registered_method_takes_settings_and_lists_them(search, tmp_path):
    run = train_walk(tmp_path, method="search", settings={"spread": 0.0})
    assert {row["push"] for row in run.episodes[1:]} == {0.0}
    with pytest.raises(InputError, match=r"^there is no setting 'spred': did you mean spread\?$"):
        train_walk(tmp_path / "other", method="search", settings={"spred": 0.0})
    with pytest.raises(InputError, match=r"^the method is 'serch': choose cap, .*, search\.$"):
        train_walk(tmp_path / "other", method="serch")
    with pytest.raises(InputError, match=r"^the method is 'search': choose cap, .* in a finite world\.$"):
        capax.train("capax/Gridworld-v0", method="search", out=tmp_path / "other")


def test_a_run_of_a_method_that_is_not_registered_is_refused(registries, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(METHODS, "_entries", dict(METHODS))
        capax.register(capax.Method("search", build_search, {"vector": SearchSettings()}))
        run = train_walk(tmp_path, method="search")
    for call in (partial(capax.resume, env=walk, steps=90), capax.load, partial(capax.evaluate, env=walk)):
        with pytest.raises(
            InputError, match=r"^the run uses the method search: register it first, with capax\.register\.$"
        ):
            call(run)


def test_an_agent_that_is_not_one_is_refused(registries, tmp_path):
    capax.register(capax.Method("nothing", lambda ingredients: object(), {"vector": SearchSettings()}))
    with pytest.raises(InputError, match=r"^nothing builds a object: let its class inherit from capax\.Agent\.$"):
        train_walk(tmp_path / "run", method="nothing")
    assert not (tmp_path / "run").exists()


def test_a_registered_preset_changes_the_sizes_of_its_base(registries, tmp_path):
    capax.register(capax.Preset("tiny", TINY_VECTOR, base="fast", methods=("cap",)))
    config = train_tiny(tmp_path, preset="tiny", settings={"population": 6}).config
    assert config.preset == "tiny" and config.settings["ensemble"]["hidden"] == TINY_VECTOR["hidden"]
    assert config.settings["cem"]["population"] == 6 and config.settings["cem"]["execute"] == "mean"
    # of the base, which has it under an undiscounted limit


def test_a_preset_changes_the_settings_of_a_registered_method(search, tmp_path):
    capax.register(capax.Preset("still", {"spread": 0.0}, methods=("search",)))
    run = train_walk(tmp_path, method="search", preset="still")
    assert {row["push"] for row in run.episodes[1:]} == {0.0}


@pytest.mark.parametrize(("entry", "words"), [
    (capax.Method("cap", build_search, {"vector": None}), "there is already a method cap: choose another name."),
    (capax.Preset("fast", {}), "there is already a preset fast: choose another name."),
    (capax.Preset("mine", {}, base="fasd"), "there is no preset 'fasd': did you mean fast?"),
    (capax.Preset("my preset", {}), "the preset is called 'my preset': give a name of letters, digits, - and _."),
    (capax.Preset("mine", {}, base="yours"), "the preset mine is based on itself: choose another base."),
    (capax.Preset("mine", {"popluation": 20}), "the preset mine changes 'popluation': did you mean population or iterations?"),
    (
        capax.Preset("mine", {"population": 20, "minibatch": 3}),
        "no method has all settings of the preset mine: register a preset for each.",
    ),
    ("search", "'search' cannot be registered: give a capax.Method or a capax.Preset."),
])  # fmt: skip
def test_what_cannot_be_registered_is_refused(entry, words, registries):
    capax.register(capax.Preset("mine", {}))
    capax.register(capax.Preset("yours", {}, base="mine"))
    with pytest.raises(InputError) as error:
        capax.register(entry)
    assert str(error.value) == words


# A rule for κ.


class MeanState(NamedTuple):
    """κ, the planned episodes so far, and the costs of the last ones."""

    kappa: float
    episodes: int
    costs: tuple[float, ...]


class MeanRule:
    """κ rises by `gain` for a mean cost of 1 above the limit. A plain class: it inherits from nothing."""

    def __init__(self, gain: float = 0.1) -> None:
        self.gain = gain

    def init(self) -> MeanState:
        return MeanState(0.25, 0, (0.0,))

    def update(self, state: MeanState, feedback: capax.Feedback) -> MeanState:
        if feedback.random:
            return state
        costs = (*state.costs, feedback.paid)[-3:]
        kappa = max(0.0, state.kappa + self.gain * (float(np.mean(costs)) - feedback.limit))
        return MeanState(kappa, state.episodes + 1, costs)

    def report(self, state: MeanState) -> Mapping[str, Any]:
        return {"mean_episodes": state.episodes}


OWN_RULE = dict(settings=TINY_VECTOR, cost_limit=4.0, steps=60)


def test_an_own_rule_is_trained_and_resumed_to_the_rows_of_a_run_without_a_stop(tmp_path):
    whole = train_walk(tmp_path / "whole", kappa=MeanRule(), **OWN_RULE)
    assert whole.config.kappa == "MeanRule" and whole.config.own_kappa
    planned = [row for row in whole.episodes if row["phase"] == "plan"]
    assert [row["mean_episodes"] for row in planned] == list(range(len(planned))) and len(planned) >= 4
    assert planned[0]["kappa"] == 0.25
    # by hand: the rule begins with a cost of 0, which is averaged with the first ones; its tuple grows
    first, second = (row["cost"] for row in planned[:2])
    kappa = max(0.0, 0.25 + 0.1 * (first / 2.0 - 4.0))
    assert planned[1]["kappa"] == pytest.approx(kappa, rel=1e-12)
    assert planned[2]["kappa"] == pytest.approx(max(0.0, kappa + 0.1 * ((first + second) / 3.0 - 4.0)), rel=1e-12)
    for stop in range(1, len(whole.episodes)):
        out = tmp_path / str(stop)
        cut = train_walk(out, kappa=MeanRule(), on_episode=stop_after(stop), **OWN_RULE)
        assert len(cut.episodes) == stop
        capax.resume(cut, env=walk, kappa=MeanRule())
        assert without_times(cut.episodes) == without_times(whole.episodes)


def test_an_own_rule_must_be_handed_over_again(tmp_path):
    run = train_walk(tmp_path, kappa=MeanRule(), **OWN_RULE)
    for call in (partial(capax.resume, env=walk, steps=90), capax.load, partial(capax.evaluate, env=walk)):
        with pytest.raises(InputError) as error:
            call(run)
        assert str(error.value) == (
            "the run was trained with a rule of your own, MeanRule: hand it over again in Python, as kappa=MeanRule(...)."
        )
        with pytest.raises(InputError, match=r"^kappa is a OtherRule, but the run was trained with MeanRule: hand"):
            call(run, kappa=type("OtherRule", (MeanRule,), {})())
    assert capax.load(run, kappa=MeanRule())(np.zeros(2)).shape == (1,)
    assert len(capax.evaluate(run, env=walk, kappa=MeanRule(), episodes=1).rows) == 1


def test_parameters_of_the_rule_of_a_finite_world_can_be_set(tmp_path):
    options = dict(steps=200, episode_steps=50)
    run = capax.train("capax/Gridworld-v0", out=tmp_path / "run", settings={"start": 2.5, "alpha": 0.2}, **options)
    assert run.config.rule == {"start": 2.5, "alpha": 0.2} and run.episodes[1]["kappa"] <= 2.5
    with pytest.raises(InputError, match=r"^there is no setting 'population' in a finite world: choose alpha, "):
        capax.train("capax/Gridworld-v0", out=tmp_path / "refused", settings={"population": 2}, **options)
    with pytest.raises(InputError, match=r"^there is no setting 'alpha' in a finite world: omit it\.$"):
        capax.train("capax/Gridworld-v0", out=tmp_path / "refused", settings={"alpha": 2}, kappa=0.1, **options)


def test_an_own_rule_chooses_kappa_in_a_finite_world(tmp_path):
    options = dict(steps=400, episode_steps=50, kappa=MeanRule(gain=1.0))
    whole = capax.train("capax/Gridworld-v0", out=tmp_path / "whole", **options)
    assert whole.episodes[1]["kappa"] == 0.25 and len({row["kappa"] for row in whole.episodes[1:]}) > 1
    cut = capax.train("capax/Gridworld-v0", out=tmp_path / "cut", on_episode=stop_after(4), **options)
    with pytest.raises(InputError, match=r"^the run was trained with a rule of your own, MeanRule: hand it over again"):
        capax.resume(cut)
    capax.resume(cut, kappa=MeanRule(gain=1.0))
    assert without_times(cut.episodes) == without_times(whole.episodes)
    assert 0 <= capax.load(cut)(0) < 4  # a table needs no rule


def test_a_rule_is_handed_over_only_where_the_run_had_one(tmp_path):
    run = train_tiny(tmp_path)
    with pytest.raises(InputError, match=r"^kappa is .*, but the run chose conformal: omit it\.$"):
        capax.load(run, kappa=MeanRule())


class StateWithoutKappa(NamedTuple):
    gain: float


class StateWithAList(NamedTuple):
    kappa: float
    costs: list[float]


@pytest.mark.parametrize(("parts", "words"), [
    ({"init": lambda self: StateWithoutKappa(1.0)}, "init of the rule Own returns StateWithoutKappa(gain=1.0): return a "),
    ({"init": lambda self: StateWithAList(1.0, [])}, "init of the rule Own returns costs=[]: a state holds numbers and "),
    ({"init": lambda self: MeanState(-1.0, 0, ())}, "init of the rule Own returns kappa=-1.0: return a finite number >= 0"),
    ({"init": lambda self: 1 / 0}, "init of the rule Own raised ZeroDivisionError (division by zero): fix it."),
    ({"update": lambda self, state, feedback: 1 / 0}, "update of the rule Own raised ZeroDivisionError"),
    ({"update": lambda self, state, feedback: StateWithAList(1.0, [])}, "update of the rule Own returns costs=[]: a state"),
    ({"update": lambda self, state, feedback: MeanState(0.0, 0, 1.0)},
     "update of the rule Own returns costs=1.0: return a tuple of numbers, as init does."),
    ({"update": None}, "kappa is "),
])  # fmt: skip
def test_a_rule_that_does_not_fit_is_refused_in_one_sentence(parts, words, tmp_path):
    rule = type("Own", (MeanRule,), parts)()
    with pytest.raises(InputError) as error:
        train_tiny(tmp_path / "run", kappa=rule)
    message = str(error.value)
    assert message.startswith(words) and "\n" not in message and message.endswith(".")


# Loggers.


class ListLogger(capax.Logger):
    """Keeps all that it receives."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rows: list[Any] = []

    def start(self, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        self.calls.append(f"start {folder.name} {config['task']} {first_step}")

    def log(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.calls.append("close")


class PlainLogger:
    """A plain class with `log` alone."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)


class FailingLogger(PlainLogger):
    """Raises at the second row."""

    def log(self, row: Mapping[str, Any]) -> None:
        if self.rows:
            raise ConnectionError("the server is away")
        super().log(row)


def test_loggers_get_every_row_of_a_run_and_of_its_continuation(tmp_path):
    logger, plain = ListLogger(), PlainLogger()
    run = train_tiny(tmp_path / "run", loggers=[logger, plain], on_episode=stop_after(2))
    assert logger.calls == ["start run Toy 0", "close"]
    capax.resume(run, env=counting(), loggers=[logger, plain])
    assert logger.calls[2:] == ["start run Toy 6", "close"]
    assert logger.rows == plain.rows == run.episodes
    assert not list(run.folder.glob("events.out.tfevents.*"))  # TensorBoard is a logger that was not chosen


def test_a_logger_that_raises_is_dropped_with_a_warning_and_the_run_completes(tmp_path, capsys):
    failing, plain = FailingLogger(), PlainLogger()
    run = train_tiny(tmp_path, loggers=[failing, plain])
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning:")]
    assert warnings[0] == (
        "warning: the logger FailingLogger raised ConnectionError (the server is away) in log and was dropped; the run "
        "continues, and episodes.jsonl is complete."
    )
    assert sum("FailingLogger" in line for line in warnings) == 1
    assert len(run.episodes) == 3 and plain.rows == run.episodes and failing.rows == run.episodes[:1]


# A task.


class Commute(Toy):
    """A toy with a constructor of its own, as a user registers it."""

    def __init__(self, cost_limit: float, discounted: bool = False, toll: float = 2.0, **options: Any) -> None:
        super().__init__(reply=lambda toy: (toy.obs(), 1.0, False, False, {"cost": toll}), **options)


@pytest.fixture
def commute() -> Iterator[str]:
    """The id of a registered task with a limit of 15 on episodes of 7 steps."""
    name = "test/Commute-v0"
    gym.register(name, entry_point=Commute, max_episode_steps=7, kwargs={"cost_limit": 15.0})
    yield name
    del gym.registry[name]


def test_a_registered_task_brings_its_limit_and_its_length(commute, tmp_path):
    run = capax.train(commute, method="random", steps=21, out=tmp_path / "run")
    config = run.config
    assert (config.task, config.cost_limit, config.discounted, config.episode_steps) == (commute, 15.0, False, 7)
    assert config.made_by == "id"
    assert [(row["cost"], row["violation"]) for row in run.episodes] == [(14.0, False)] * 3  # 7 steps of 2
    dear = capax.train(
        commute, method="random", steps=7, out=tmp_path / "dear", cost_limit=20.0, env_kwargs={"toll": 3.0}
    )
    assert (dear.config.cost_limit, dear.config.env_kwargs) == (20.0, {"toll": 3.0})
    assert [(row["cost"], row["violation"]) for row in dear.episodes] == [(21.0, True)]
