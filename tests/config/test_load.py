"""A recipe becomes a config, or a sentence that names the key."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uptrend.config import Config, Eval, Kl, Learning, Lora, Model, Sampling, Tasks, build, load_config, to_table
from uptrend.records import ConfigError


def problem(table: dict[str, Any], *overrides: str) -> str:
    """What is said of a table that can't be used."""
    with pytest.raises(ConfigError) as caught:
        load_config(table, overrides)
    return str(caught.value)


def test_the_empty_recipe_is_all_defaults() -> None:
    assert load_config({}) == Config()


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name = ", "r.toml is not TOML: Invalid value (at end of document)"),
        (b"a = 1\na = 2", "r.toml is not TOML: Cannot overwrite a value"),
        (b"\xff\xfe", "r.toml is not a text file; a recipe is TOML"),
    ],
)
def test_a_file_that_is_not_toml(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "r.toml")
    assert said in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no recipe at .*none\.toml"):
        load_config(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="is a folder; a recipe is a TOML file"):
        load_config(tmp_path)


WRONG = [
    ("learning.lr", "fast", "should be a number"),
    ("learning.lr", True, "should be a number"),
    ("learning.lr", float("nan"), "is out of range"),
    ("learning.lr", float("inf"), "is out of range"),
    ("learning.lr", 10**400, "is out of range"),
    ("learning.steps", 1.5, "should be a whole number"),
    ("learning.steps", "10", "should be a whole number"),
    ("seed", 2**70, "is out of range"),
    ("name", 3, "should be a text"),
    ("model.gradient_checkpointing", "yes", "should be true or false"),
    ("model.gradient_checkpointing", 1, "should be true or false"),
    ("model", "tiny", "should be a table with name, weights, lora"),
    ("model.lora", 8, "should be a table with r, alpha"),
    ("model.weights", "fp16", "is not one of fp32, bf16"),
    ("learning.loss", "grop", "Did you mean grpo?"),
    ("sampling.stop", "end", "should be a list, for example ['end']"),
    ("tasks.stages", [3], "should be a table"),
    ("tasks.options", 3, "should be a table"),
    ("tasks.options.seed", 3, "is a key of [tasks] itself: write tasks.seed"),
    ("name", "", "becomes a folder"),
    ("name", "a/b", "becomes a folder"),
    ("name", "..", "becomes a folder"),
    ("seed", -1, "should be 0 or more"),
    ("model.name", " ", "is empty"),
    ("model.lora.r", 0, "should be at least 1"),
    ("model.lora.alpha", 0, "should be above 0"),
    ("model.lora.dropout", 1.0, "should be at least 0 and below 1"),
    ("tasks.name", "", "is empty"),
    ("tasks.seed", -1, "should be 0 or more"),
    ("tasks.train", 0, "should be at least 1"),
    ("tasks.stages[0].start", [{}], "should be the step"),
    ("tasks.stages[0].start", [{"start": True}], "should be the step"),
    ("tasks.stages", [{"start": 2}], "the first should start at 1"),
    ("tasks.stages", [{"start": 1}, {"start": 1}], "each later than the one before"),
    ("eval.name", "", "is empty"),
    ("eval.seed", -1, "should be 0 or more"),
    ("eval.tasks", 0, "should be at least 1"),
    ("eval.every", -1, "should be 0 or more"),
    ("eval.attempts", -1, "should be 0 or more"),
    ("sampling.groups", 0, "should be at least 1"),
    ("sampling.size", 1, "a group of one has nothing to compare with"),
    ("sampling.temperature", 0, "all rollouts of a group would be the same"),
    ("sampling.top_p", 0, "should be above 0 and at most 1"),
    ("sampling.top_p", 1.1, "should be above 0 and at most 1"),
    ("sampling.top_k", -1, "should be 0 or more"),
    ("sampling.max_tokens", 0, "should be at least 1"),
    ("sampling.max_turns", 0, "should be at least 1"),
    ("sampling.context", 8, "should exceed sampling.max_tokens = 8"),
    ("sampling.stop", [""], "holds an empty text"),
    ("sampling.resample", -1, "should be 0 or more"),
    ("sampling.rows", -1, "should be 0 or more"),
    ("learning.steps", 0, "should be at least 1"),
    ("learning.lr", 0, "should be above 0"),
    ("learning.warmup", 101, "should be between 0 and learning.steps = 100"),
    ("learning.clip_low", 1.0, "should be below 1"),
    ("learning.clip_low", -0.1, "should be 0 or more"),
    ("learning.clip_high", -0.1, "should be 0 or more"),
    ("learning.kl.beta", -1, "should be 0 or more"),
    ("learning.kl.estimator", "k4", "is not one of k1, k2, k3"),
    ("learning.updates", 0, "should be at least 1"),
    ("learning.minibatches", 3, "should divide sampling.groups = 16"),
    ("learning.minibatches", 0, "should be at least 1"),
    ("learning.max_grad_norm", -1, "should be 0 or more"),
    ("learning.weight_decay", -1, "should be 0 or more"),
    ("learning.correction_cap", 0, "should be above 0"),
    ("learning.beta1", 1, "should be at least 0 and below 1"),
    ("learning.beta2", -0.1, "should be at least 0 and below 1"),
    ("learning.tokens", 0, "should be at least 1"),
    ("checkpoints.every", -1, "should be 0 or more"),
    ("checkpoints.keep", 0, "should be at least 1"),
    ("compute.device", "gpu", "should be auto, cpu or cuda"),
    ("compute.threads", -1, "should be 0 or more"),
    ("compute.compile", "maybe", "is not one of auto, never, always"),
]


@pytest.mark.parametrize(("key", "value", "said"), WRONG, ids=[f"{key}={str(v)[:12]}" for key, v, _ in WRONG])
def test_a_wrong_value_is_answered_with_its_key(key: str, value: Any, said: str) -> None:
    nested: Any = value
    for part in reversed(key.removesuffix("[0].start").split(".")):
        nested = {part: nested}
    sentence = problem(nested)
    assert key in sentence
    assert said in sentence
    assert sentence.endswith((".", "?"))


def test_dead_groups_are_skipped_only_where_they_teach_nothing() -> None:
    assert load_config({"learning": {"skip_dead": True}}).learning.skip_dead
    for teaches in ({"kl": {"beta": 0.1}}, {"entropy": 0.01}):
        sentence = problem({"learning": {"skip_dead": True, **teaches}})
        assert sentence.startswith("learning.skip_dead = true needs learning.kl.beta = 0")


def test_cispo_clips_at_clip_high_itself() -> None:
    assert "learning.clip_high = 0.2: cispo clips" in problem({"learning": {"loss": "cispo"}})
    assert load_config({"learning": {"loss": "cispo", "clip_high": 5, "clip_low": 1}}).learning.clip_high == 5


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"learnig": {}}, "learnig is not a known key. Did you mean learning?"),
        (
            {"learning": {"learning_rate": 1}},
            "learning.learning_rate is not a known key. learning takes steps,",
        ),
        ({"learning": {"step": 1}}, "learning.step is not a known key. Did you mean steps?"),
        ({"learning": {"kl": {"bta": 1}}}, "learning.kl.bta is not a known key. Did you mean beta?"),
        ({"zzz": 1}, "zzz is not a known key. The top level takes name, seed, model,"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_or_with_all(table: dict[str, Any], said: str) -> None:
    assert said in problem(table)


def test_tasks_and_eval_keep_the_options_of_their_taskset() -> None:
    config = load_config({"tasks": {"digits": 3, "options": {"ops": ["+"]}}, "eval": {"digits": 2}})
    assert config.tasks.options == {"digits": 3, "ops": ["+"]}
    assert config.eval.options == {"digits": 2}


def test_overrides_are_toml_or_text() -> None:
    config = load_config(
        {"learning": {"lr": 1e-5}},
        [
            "learning.lr=2e-5",
            "learning.loss=dapo",
            'name="a-b"',
            "model.name = org/model",
            "learning.kl.beta=0.1",
            'sampling.stop=["a", "b=c"]',
            "tasks.template=a = b",
            "model.gradient_checkpointing=true",
        ],
    )
    assert config.learning.lr == 2e-5
    assert config.learning.loss == "dapo"
    assert (config.name, config.model.name) == ("a-b", "org/model")
    assert config.learning.kl.beta == 0.1
    assert config.sampling.stop == ("a", "b=c")
    assert config.tasks.options == {"template": "a = b"}
    assert config.model.gradient_checkpointing is True


def test_an_override_that_is_several_values_is_text() -> None:
    assert load_config({}, ["tasks.note=1\nseed = 2"]).tasks.options == {"note": "1\nseed = 2"}


def test_the_last_override_wins_and_the_table_given_stays_as_it_was() -> None:
    table = {"learning": {"lr": 1e-5}}
    assert load_config(table, ["learning.lr=1e-3", "learning.lr=1e-4"]).learning.lr == 1e-4
    assert table == {"learning": {"lr": 1e-5}}


def test_adapters_can_be_set_and_taken_away() -> None:
    resolved = to_table(Config())
    assert load_config(resolved, ["model.lora.r=4"]).model.lora == Lora(r=4)
    assert load_config({"model": {"lora": {"r": 4}}}, ["model.lora=false"]).model.lora is None


@pytest.mark.parametrize("override", ["learning.lr", "=3", ".lr=3", "learning.=3"])
def test_an_override_without_key_or_value(override: str) -> None:
    assert f"--set {override}: write it as key=value" in problem({}, override)


def test_an_override_below_a_value() -> None:
    assert "learning.lr is a value, not a table" in problem({"learning": {"lr": 1}}, "learning.lr.x=3")
    assert "learning.lrr is not a known key. Did you mean lr?" in problem({}, "learning.lrr=3")


def test_a_resolved_config_has_every_value() -> None:
    def keys(cls: Any, value: dict[str, Any]) -> None:
        for field in dataclasses.fields(cls):
            if field.name == "options":
                continue
            assert field.name in value
            if dataclasses.is_dataclass(default := getattr(cls(), field.name)):
                keys(type(default), value[field.name])

    keys(Config, to_table(Config()))


names = st.text("abcdefghij-0123456789", min_size=1).filter(lambda s: s[0] != ".")
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
options = st.dictionaries(st.sampled_from(["digits", "ops", "größe", "a.b"]), plain)
fractions = st.floats(0.01, 0.99)
configs = st.builds(
    Config,
    name=names,
    seed=st.integers(0, 2**63 - 1),
    model=st.builds(
        Model,
        name=names,
        weights=st.sampled_from(["fp32", "bf16"]),
        lora=st.none() | st.builds(Lora, r=st.integers(1, 256), targets=st.lists(names).map(tuple)),
    ),
    tasks=st.builds(
        Tasks,
        train=st.integers(1, 10**6),
        options=options,
        stages=st.just(()) | st.builds(lambda o: ({"start": 1, **o},), options),
    ),
    eval=st.builds(Eval, options=options),
    sampling=st.builds(
        Sampling,
        temperature=st.floats(1e-3, 5),
        top_p=fractions,
        stop=st.lists(st.text(min_size=1)).map(tuple),
    ),
    learning=st.builds(
        Learning,
        lr=st.floats(1e-12, 1),
        loss=st.sampled_from(["grpo", "dapo", "gspo"]),
        kl=st.builds(Kl, beta=st.floats(0, 10), estimator=st.sampled_from(["k1", "k2", "k3"])),
        clip_low=fractions,
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
    """As a taskset declares them."""

    path: str
    digits: int = 2
    limit: int | None = None
    strict: bool | None = None


def test_options_become_their_dataclass() -> None:
    assert build(Options, {"path": "a", "limit": 3}, "tasks") == Options("a", 2, 3)
    assert build(Options, {"path": "a", "strict": False}, "tasks").strict is False


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "tasks.path is missing."),
        ({"path": "a", "digit": 3}, "tasks.digit is not a known key. Did you mean digits?"),
        ({"path": "a", "limit": "x"}, "tasks.limit = 'x' should be a whole number."),
        ({"path": 1}, "tasks.path = 1 should be a text."),
    ],
)
def test_wrong_options_are_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Options, values, "tasks")
    assert str(caught.value) == said
