"""A recipe becomes a config, or a sentence that names the key."""

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uptrend.config import (
    Config,
    Eval,
    Kl,
    Learning,
    Lora,
    Model,
    Sampling,
    Tasks,
    build,
    load_config,
    to_table,
)
from uptrend.records import ConfigError

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "training.md").read_text(encoding="utf-8")


def problem(table: dict[str, Any], *overrides: str) -> str:
    """Return what is said of a table that can't be used."""
    with pytest.raises(ConfigError) as caught:
        load_config(table, overrides)
    return str(caught.value)


def test_a_recipe_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(
        """
        name = "größe"
        seed = 3
        [model]
        lora = { r = 8, alpha = 16 }
        [tasks]
        train = 50
        digits = 3
        stages = [{ start = 1, digits = 1 }, { start = 10, digits = 2 }]
        [learning]
        lr = 1
        kl = { beta = 0.1 }
        [sampling]
        stop = ["\\n"]
        """,
        encoding="utf-8",
    )
    config = load_config(tmp_path / "r.toml")
    assert (config.name, config.seed) == ("größe", 3)
    assert config.model.lora == Lora(r=8, alpha=16.0)
    assert isinstance(config.learning.lr, float)
    assert config.learning.kl == Kl(beta=0.1, estimator="k3")
    assert config.tasks.options == {"digits": 3}
    assert config.tasks.stages == ({"start": 1, "digits": 1}, {"start": 10, "digits": 2})
    assert config.sampling.stop == ("\n",)
    assert config.eval == Eval()
    assert load_config({}) == Config()


def test_the_page_shows_recipes_that_load_and_errors_as_they_are(tmp_path: Path) -> None:
    for recipe in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / "recipe.toml").write_text(recipe)
        assert load_config(tmp_path / "recipe.toml", ["learning.loss=dapo"]).learning.loss == "dapo"
    (block,) = re.findall(r"```\n(learning\.lrr.*?)```", PAGE, re.DOTALL)
    wrong = ["learning.lrr=1", "sampling.size=1", "learning.minibatches=3"]
    assert [problem({}, override) for override in wrong] == block.splitlines()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name = ", "r.toml is not TOML: Invalid value (at end of document)"),
        (b"a = 1\na = 2", "r.toml is not TOML: Cannot overwrite a value"),
        (b"\xff\xfe", "r.toml is not a text file; a recipe is TOML"),
        (None, "There is no recipe at "),
    ],
)
def test_a_file_that_is_not_toml_or_not_there(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_config(str(tmp_path / "r.toml"))
    with pytest.raises(ConfigError, match="is a folder; a recipe is a TOML file"):
        load_config(tmp_path)


WRONG = [
    ("learning.lr", "fast", "should be a number"),
    ("learning.lr", float("nan"), "is out of range"),
    ("learning.lr", 10**400, "is out of range"),
    ("learning.lr", 0, "should be above 0"),
    ("learning.steps", 1.5, "should be a whole number"),
    ("learning.steps", 0, "should be at least 1"),
    ("seed", -1, "should be 0 or more"),
    ("name", 3, "should be a text"),
    ("name", "", "becomes a folder"),
    ("name", "..", "becomes a folder"),
    ("model.gradient_checkpointing", 1, "should be true or false"),
    ("model", "tiny", "should be a table with name, weights, lora"),
    ("model.lora.dropout", 1.0, "should be at least 0 and below 1"),
    ("model.weights", "fp16", "is not one of fp32, bf16"),
    ("model.name", " ", "is empty"),
    ("tasks.stages", [3], "should be a table"),
    ("tasks.stages[0].start", [{"start": True}], "should be the step"),
    ("tasks.stages", [{"start": 2}], "the first should start at 1"),
    ("tasks.stages", [{"start": 1}, {"start": 1}], "each later than the one before"),
    ("tasks.options", 3, "should be a table"),
    ("tasks.options.seed", 3, "is a key of [tasks] itself: write tasks.seed"),
    ("sampling.size", 1, "a group of one has nothing to compare with"),
    ("sampling.temperature", 0, "all rollouts of a group would be the same"),
    ("sampling.top_p", 1.1, "should be above 0 and at most 1"),
    ("sampling", {"context": 8, "max_tokens": 8}, "should exceed sampling.max_tokens = 8"),
    ("sampling.context", 0, "should exceed sampling.max_tokens = 1"),
    ("sampling.stop", "end", "should be a list, for example ['end']"),
    ("sampling.stop", [""], "holds an empty text"),
    ("learning.loss", "grop", "Did you mean grpo?"),
    ("learning", {"loss": "cispo", "clip_high": 0.2}, "clip_high = 0.2: cispo clips"),
    ("learning.warmup", 101, "should be between 0 and learning.steps = 100"),
    ("learning.clip_low", 1.0, "should be below 1"),
    ("learning.minibatches", 3, "should divide sampling.groups = 16"),
    (
        "learning",
        {"skip_dead": True, "kl": {"beta": 0.1}},
        "skip_dead = true needs learning.kl.beta = 0",
    ),
    (
        "learning",
        {"kl": {"reset_every": 10}},
        "learning.kl.reset_every = 10 needs learning.kl.beta above 0",
    ),
    (
        "learning",
        {"skip_dead": True, "entropy": 0.01},
        "skip_dead = true needs learning.kl.beta = 0",
    ),
    ("compute.device", "gpu", "should be auto, cpu or cuda"),
    ("learnig", {}, "learnig is not a known key. Did you mean learning?"),
    ("learning.learning_rate", 1, "is not a known key. Did you mean learning.lr?"),
    ("learning.zzz", 1, "is not a known key. learning takes steps,"),
    ("zzz", 1, "is not a known key. The top level takes name, seed, notes, model,"),
]


@pytest.mark.parametrize(
    ("key", "value", "said"), WRONG, ids=[f"{key}={str(v)[:12]}" for key, v, _ in WRONG]
)
def test_a_wrong_value_is_answered_with_its_key(key: str, value: Any, said: str) -> None:
    nested: Any = value
    for part in reversed(key.removesuffix("[0].start").split(".")):
        nested = {part: nested}
    sentence = problem(nested)
    assert key in sentence
    assert said in sentence
    assert sentence.endswith((".", "?"))


def test_rules_that_hold() -> None:
    assert load_config({"learning": {"skip_dead": True}}).learning.skip_dead
    assert (
        load_config(
            {"learning": {"loss": "cispo", "clip_high": 5, "clip_low": 1}}
        ).learning.clip_high
        == 5
    )
    config = load_config({"tasks": {"digits": 3, "options": {"ops": ["+"]}}, "eval": {"digits": 2}})
    assert config.tasks.options == {"digits": 3, "ops": ["+"]}
    assert config.eval.options == {"digits": 2}
    assert load_config({"sampling": {"size": 1}}, checked=False).sampling.size == 1


def test_overrides_are_toml_or_text_and_the_last_wins() -> None:
    table = {"learning": {"lr": 1e-5}}
    config = load_config(
        table,
        [
            "learning.lr=1e-3", "learning.lr=2e-5", "learning.loss=dapo", 'name="a-b"', "model.name = org/model",
            "learning.kl.beta=0.1", 'sampling.stop=["a", "b=c"]', "tasks.template=a = b", "tasks.note=1\nseed = 2",
            "model.gradient_checkpointing=true",
        ],
    )  # fmt: skip
    assert config == load_config(
        {
            "name": "a-b", "model": {"name": "org/model", "gradient_checkpointing": True},
            "learning": {"lr": 2e-5, "loss": "dapo", "kl": {"beta": 0.1}}, "sampling": {"stop": ["a", "b=c"]},
            "tasks": {"template": "a = b", "note": "1\nseed = 2"},
        }
    )  # fmt: skip
    assert table == {"learning": {"lr": 1e-5}}
    assert load_config(table, {"learning.lr": 3e-5, "model.lora": {"r": 4}}).model.lora == Lora(r=4)


def test_adapters_can_be_set_and_taken_away() -> None:
    assert load_config(to_table(Config()), ["model.lora.r=4"]).model.lora == Lora(r=4)
    assert load_config({"model": {"lora": {"r": 4}}}, ["model.lora=false"]).model.lora is None


@pytest.mark.parametrize("override", ["learning.lr", "=3", ".lr=3", "learning.=3"])
def test_an_override_without_key_or_value_or_below_a_value(override: str) -> None:
    assert f"--set {override}: write it as key=value" in problem({}, override)
    assert "learning.lr is a value, not a table" in problem(
        {"learning": {"lr": 1}}, "learning.lr.x=3"
    )


names = st.text("abcdefghij-0123456789", min_size=1).filter(lambda s: s[0] != ".")
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
options = st.dictionaries(st.sampled_from(["digits", "ops", "größe", "a.b"]), plain)
stages = st.just(()) | st.builds(lambda o: ({"start": 1, **o},), options)
adapters = st.none() | st.builds(Lora, r=st.integers(1, 256), targets=st.lists(names).map(tuple))
stops = st.lists(st.text(min_size=1)).map(tuple)
configs = st.builds(
    Config,
    name=names,
    seed=st.integers(0, 2**63 - 1),
    model=st.builds(Model, name=names, weights=st.sampled_from(["fp32", "bf16"]), lora=adapters),
    tasks=st.builds(Tasks, train=st.integers(1, 10**6), options=options, stages=stages),
    eval=st.builds(Eval, options=options),
    sampling=st.builds(
        Sampling, temperature=st.floats(1e-3, 5), top_p=st.floats(0.01, 0.99), stop=stops
    ),
    learning=st.builds(
        Learning,
        lr=st.floats(1e-12, 1),
        loss=st.sampled_from(["grpo", "dapo", "gspo"]),
        kl=st.builds(Kl, beta=st.floats(0, 10), estimator=st.sampled_from(["k1", "k2", "k3"])),
        clip_low=st.floats(0.01, 0.99),
        minibatches=st.sampled_from([1, 2, 4, 8, 16]),
    ),
)


@settings(max_examples=60, deadline=None)
@given(configs)
def test_a_config_survives_run_json(config: Config) -> None:
    assert load_config(json.loads(json.dumps(to_table(config)))) == config
    assert load_config(dataclasses.asdict(config)) == config


@dataclass(frozen=True)
class Options:
    """Options as a taskset declares them; it checks itself."""

    path: str
    digits: int = 2
    limit: int | None = None
    strict: bool | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("path is empty.", is_of_field=True)


def test_options_become_their_dataclass() -> None:
    assert build(Options, {"path": "a", "limit": 3}, "tasks") == Options("a", 2, 3)
    assert build(Options, {"path": "a", "strict": False}, "tasks").strict is False


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "tasks.path is missing."),
        ({"path": ""}, "tasks.path is empty."),
        ({"path": "a", "digit": 3}, "tasks.digit is not a known key. Did you mean digits?"),
        ({"path": "a", "limit": "x"}, "tasks.limit = 'x' should be a whole number."),
        ({"path": 1}, "tasks.path = 1 should be a text."),
    ],
)
def test_wrong_options_are_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Options, values, "tasks")
    assert str(caught.value) == said


def test_tasks_can_be_another_recipes(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(
        "[tasks]\nname = 'data'\nfile = 'rows.jsonl'\n[eval]\ntasks = 7\n[model]\nname = 'x'\n"
    )
    (tmp_path / "rows.jsonl").write_text("")
    mine = {
        "tasks": {"name": "arithmetic", "operations": ["+"]},
        "eval": {"name": "arithmetic", "every": 3},
    }
    config = load_config(mine, [f"tasks={tmp_path / 'other.toml'}", "tasks.train=5"])
    assert (config.tasks.name, config.tasks.train, config.tasks.options) == (
        "data", 5, {"file": str(tmp_path / "rows.jsonl")},
    )  # fmt: skip
    assert (config.eval.name, config.eval.tasks, config.eval.every, config.model.name) == (
        "data",
        7,
        20,
        "smollm2-135m",
    )
    with pytest.raises(ConfigError, match="tasks = 'arithmetic' should be a table"):
        load_config(mine, ["tasks=arithmetic"])
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.toml").write_text("")
    assert (
        load_config(tmp_path / "deep" / "mine.toml", ["tasks=other.toml"]).tasks.name == "data"
    )  # from above it


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("lr=1e-5", "learning.lr or warmstart.lr"),
        ("training.lr=1e-5", "learning.lr or warmstart.lr"),
        ("learnin.lr=1e-5", "learning.lr"),
        ("sampling.steps=3", "learning.steps"),
        ("learning.beta=0.1", "learning.kl.beta"),
        ("r=8", "model.lora.r"),
        ("temprature=1", "eval.temperature or sampling.temperature"),
        ("smpling.zzz=1", "sampling"),
        ("sampling.temprature=1", "temperature"),
    ],
)
def test_an_unknown_key_is_answered_with_the_key_that_was_meant(override: str, meant: str) -> None:
    assert (
        problem({}, override)
        == f"{override.partition('=')[0]} is not a known key. Did you mean {meant}?"
    )


def test_a_recipe_warms_up_within_a_shortened_run(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[learning]\nsteps = 100\nwarmup = 10")
    shortened = load_config(tmp_path / "r.toml", ["learning.steps=5"])
    assert shortened.learning.warmup == 2
    assert shortened.notes == (
        "learning.warmup = 2: the recipe's 10 would exceed learning.steps = 5.",
    )
    assert load_config(tmp_path / "r.toml", {"learning.steps": 1}).learning.warmup == 0
    enough = load_config(tmp_path / "r.toml", ["learning.steps=10"])
    assert (enough.learning.warmup, enough.notes) == (10, ())
    for overrides in (["learning.steps=5", "learning.warmup=6"], ["learning.warmup=101"]):
        with pytest.raises(
            ConfigError, match=r"learning.warmup = .* should be between 0 and learning.steps"
        ):
            load_config(tmp_path / "r.toml", overrides)
    (tmp_path / "r.toml").write_text("[learning]\nsteps = 5\nwarmup = 10")
    with pytest.raises(
        ConfigError, match=r"learning.warmup = 10 should be between 0 and learning.steps = 5"
    ):
        load_config(tmp_path / "r.toml")
