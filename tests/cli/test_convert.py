"""`uptrend convert`: settings of TRL and prime-rl become recipes and come back; what is lost is
said.
"""

import importlib.util
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.bridge.convert import (
    Converted,
    from_prime_rl,
    from_trl,
    load_recipe,
    read_any,
    to_trainer,
    write_prime_rl,
)
from uptrend.config import load_config, to_table
from uptrend.config.tables import flatten, nest
from uptrend.records.dialects import other_default, settings, to_theirs
from uptrend.tasks.pool import resolve_options

Uptrend = Callable[..., Any]
ROOT = Path(__file__).parents[2]
SCRIPT = """
import argparse
import re
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model-id", default="tiny")
NUMBER = re.compile(r"-?[0-9]+")
ROWS = [{"prompt": f"Calculate: 1 + {1} = ", "answer": "2"}, {"prompt": "Calculate: 7 - 3 = ", "answer": "4"}]


def first_number(text):
    found = NUMBER.search(text)
    return found and found[0]


def right(completions, answer, **kwargs):
    found = [first_number(said) for said in completions]
    return [float(one == other) for one, other in zip(found, answer)]


def main():
    cli = parser.parse_args()
    config = GRPOConfig(
        output_dir="out", learning_rate=2 * 1e-5, num_generations=2, per_device_train_batch_size=2, temperature=0.7,
        gradient_accumulation_steps=1, steps_per_generation=2, max_steps=8, max_completion_length=5, beta=0.04,
        logging_steps=1, warmup_steps=0.25, top_entropy_quantile=0.2, num_iterations=2, gradient_checkpointing=False,
        reward_weights=[2.0, 1.0],
    )
    trainer = GRPOTrainer(
        model=cli.model_id, reward_funcs=[right, lambda completions, **_: [0.0] * len(completions)], args=config,
        train_dataset=Dataset.from_list(ROWS * 4 + [{"prompt": "Calculate: 2 + 3 = ", "answer": "5"}]),
        peft_config=LoraConfig(r=4, target_modules="all-linear"), callbacks=[print],
    )
    trainer.train()
"""
RECIPES: list[dict[str, Any]] = [
    {},
    {"learning.loss": "gspo", "learning.scale": "none", "learning.schedule": "cosine", "learning.warmup": 5},
    {"learning.updates": 2, "learning.minibatches": 4, "eval.every": 10, "checkpoints.every": 20, "learning.warmup": 3},
    {"model.lora": {"r": 4, "targets": ["q_proj"]}, "model.weights": "bf16", "sampling.top_k": 5},
    {"learning.kl": {"beta": 0.1, "reset_every": 7}, "learning.clip_high": 0.3, "learning.clip_max": 4.0, "seed": 3},
    {"learning.loss": "bnpo", "learning.optimizer": "adamw-8bit", "learning.entropy": 0.01, "sampling.min_p": 0.1},
]  # fmt: skip


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_becomes_a_recipe_with_its_rewards(uptrend: Uptrend, script: Path) -> None:
    told = uptrend("convert", script, "--out", "mine", "--json").json
    assert told["written"] == ["mine/recipe.toml", "mine/rows.jsonl", "mine/rewards.py"]
    config = load_config("mine/recipe.toml")
    got = flatten(to_table(config))
    # 2 rollouts × 2 steps per generation = 2 groups of 2; each is learned from in 2 passes of 2
    # updates.
    expected = {
        "name": "train", "model.name": "tiny", "sampling.groups": 2, "sampling.size": 2, "learning.minibatches": 2,
        "learning.updates": 2, "learning.steps": 2, "learning.warmup": 1, "learning.lr": 2e-5, "learning.kl.beta": 0.04,
        "sampling.temperature": 0.7, "sampling.max_tokens": 5, "model.lora.r": 4, "model.lora.alpha": 8.0,
        "learning.loss": "dapo", "learning.schedule": "linear", "checkpoints.every": 125, "seed": 42,
        "tasks.weights": [2.0, 1.0], "tasks.chat": False, "tasks.answer": "answer", "tasks.train": 9,
    }  # fmt: skip
    assert {key: got.get(key) for key in expected} == expected
    assert (config.model.lora and config.model.lora.targets) == ()
    assert set(told["defaults"]) == {"seed", "model.lora.alpha", "learning.schedule", "eval.every"}
    assert set(told["lost"]) == {"top_entropy_quantile", "callbacks"}
    assert told["left_out"] == ["output_dir", "logging_steps"]
    assert "#   top_entropy_quantile: 0.2 has no equivalent" in Path("mine/recipe.toml").read_text()
    assert len(Path("mine/rows.jsonl").read_text().splitlines()) == 9
    spec = importlib.util.spec_from_file_location("copied", "mine/rewards.py")
    assert spec
    assert spec.loader
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    assert copied.right(completions=["it is 4.", "five"], answer=["4", "5"]) == [1.0, 0.0]
    assert copied.reward_2(completions=["a"]) == [0.0]
    assert not hasattr(copied, "GRPOConfig")
    printed = uptrend("convert", "train.py", "--out", "mine", "--force").out
    assert "not translated  callbacks: [print]: it has no equivalent" in printed
    assert 'default         learning.schedule = "linear"' in printed


def test_settings_of_the_command_line_are_given_as_flags(uptrend: Uptrend, script: Path) -> None:
    script.write_text(
        "from trl import *\nfrom datasets import load_dataset\n"
        "script_args, training_args, model_args = TrlParser((GRPOConfig,)).parse_args_and_config()\n"
        "data = load_dataset(script_args.dataset_name, split='train')\n"
        "def talk(row):\n    return {'prompt': [{'role': 'user', 'content': row['q']}]}\n"
        "data = data.map(talk)\n"
        "training_args.beta = 0.5\n"
        "GRPOTrainer(model_args.model_name_or_path, ['owner/reward-model', undefined], training_args, data)\n"
        "GRPOTrainer('a/second', one, the_first_counts)\n"
    )
    lost = uptrend("convert", "train.py", "--out", "a", "--json").json["lost"]
    assert {"GRPOConfig", "model", "train_dataset", "reward_funcs[0]", "num_train_epochs"} <= set(
        lost
    )
    flags = (
        "--model_name_or_path Q/Q --dataset_name=o/d --loss_type grpo --importance_sampling_level sequence "
        "--max_steps 9 --lora_target_modules q_proj v_proj --unheard_of"
    )
    told = uptrend(
        "convert", "train.py", "--out", "b", "--processes", "4", "--json", "--flags", flags
    ).json
    config = load_config("b/recipe.toml")
    assert (config.model.name, config.learning.loss, config.learning.steps) == ("Q/Q", "gspo", 9)
    assert (config.sampling.groups, config.learning.kl.beta) == (4, 0.5)
    assert config.model.lora
    assert config.model.lora.targets == ("q_proj", "v_proj")
    assert set(told["lost"]) == {
        "train_dataset",
        "reward_funcs[0]",
        "reward_funcs[1]",
        "unheard_of",
    }
    made = Path("b/rows.py").read_text()
    compile(made, "rows.py", "exec")
    assert "def talk(row)" in made
    assert "data = data.map(talk)\n\nrows = data\n" in made


@pytest.mark.parametrize(
    "overrides", RECIPES, ids=lambda overrides: next(iter(overrides), "defaults")
)
def test_a_recipe_comes_back_from_trl(overrides: dict[str, Any]) -> None:
    config = load_config({"name": "back"}, overrides)
    told, lost = to_trainer(config, "trl")
    assert not lost
    found = from_trl(Converted("trl", {"tasks.train": 10**6}), dict(told), "other", 1)
    assert not found.lost
    here, there = flatten(to_table(config)), flatten(to_table(found.config))
    known = {key for key, entry in settings().items() if "trl" in entry} - {
        "learning.correction_cap",
        "model.name",
    }
    assert {key: there[key] for key in known & here.keys()} == {
        key: here[key] for key in known & here.keys()
    }


def test_variables_of_the_chat_template_come_back_from_trl() -> None:
    variables = {"enable_thinking": False, "date": "1 May"}
    config = load_config({"name": "back", "model": {"template": variables}})
    told, lost = to_trainer(config, "trl")
    assert nest(told)["chat_template_kwargs"] == variables
    assert not lost
    found = from_trl(Converted("trl", {"tasks.train": 10**6}), dict(told), "other", 1)
    assert found.config.model.template == variables
    assert not found.lost
    _, lost = to_trainer(config, "prime-rl")
    assert "enable_thinking" in lost["model.template"]


@pytest.mark.parametrize(
    "overrides", [{}, {"learning.schedule": "linear", "learning.warmup": 7, "eval.every": 9}]
)
def test_a_recipe_comes_back_from_prime_rl(overrides: dict[str, Any], tmp_path: Path) -> None:
    fixed = {
        "learning.scale": "none",
        "learning.warmup": 0,
        "model.gradient_checkpointing": True,
        "sampling.max_tokens": 100,
    }
    base = {
        "tasks": {"name": "verifiers:wordle", "level": 3},
        "eval": {"name": "verifiers:wordle", "level": 4},
    }
    config = load_config(base, {**fixed, **overrides})
    text, lost = write_prime_rl(config)
    assert set(lost) == {
        "learning.loss",
        "learning.clip_low",
        "learning.clip_high",
    }  # its loss is its own
    (tmp_path / "rl.toml").write_text(text)
    found = read_any(tmp_path / "rl.toml", {})
    assert isinstance(found, Converted)
    assert set(found.lost) <= {*lost, "trainer.scheduler.decay_steps"}
    here, there = flatten(to_table(config)), flatten(to_table(found.config))
    known = {
        key for key, entry in settings().items() if "prime-rl" in entry and entry["prime-rl"].name
    }
    known |= {"tasks.name", "tasks.level", "learning.scale", "eval.level"}
    assert {key: there[key] for key in known & here.keys()} == {
        key: here[key] for key in known & here.keys()
    }


def test_what_prime_rl_has_otherwise_is_listed() -> None:
    found = from_prime_rl({
        "seq_len": 100, "orchestrator.batch_size": 64, "orchestrator.group_size": 4, "trainer.optim.type": "muon",
        "orchestrator.max_off_policy_steps": 3, "monitors.wandb.project": "p", "orchestrator.sampling.temperature": 0.5,
        "orchestrator.env": [{"id": "a", "args": {"n": 1}}, {"id": "b"}],
    }, "old")  # fmt: skip
    assert found.config.tasks.name == "verifiers:a"
    assert found.config.tasks.options == {"n": 1}
    assert (found.config.sampling.groups, found.config.sampling.temperature) == (16, 0.5)
    assert found.defaults["sampling.max_tokens"] == 99
    assert found.machinery == ["monitors.wandb.project"]
    assert {
        "trainer.optim.type",
        "orchestrator.max_off_policy_steps",
        "tasks: b",
        "learning.loss",
    } <= set(found.lost)


MLGYM = ROOT / "configs" / "mlgym"


@pytest.mark.parametrize(
    ("file", "problems", "limits"),
    [
        ("rl_debug", "titanic", (10, 10, 2, 4, 4096, 1024, 10, 10, 5)),
        ("rl_full", "titanic prisonersDilemma imageClassificationDigits regressionHousePrice",
         (40, 40, 4, 8, 8192, 2048, 50, 200, 20)),
    ],
)  # fmt: skip
def test_environments_of_mlgym_are_ours(file: str, problems: str, limits: tuple[int, ...]) -> None:
    config = resolve_options(load_recipe(MLGYM / f"{file}.toml", ["model.name=tiny"]))
    got, keys = flatten(to_table(config)), "groups size context max_tokens max_turns"
    named = [
        "tasks.train",
        "eval.tasks",
        *(f"sampling.{k}" for k in keys.split()),
        "learning.steps",
        "checkpoints.every",
    ]
    assert tuple(got[key] for key in named) == limits
    assert (got["model.name"], got["tasks.name"], got["eval.name"]) == ("tiny", "mlgym", "mlgym")
    assert got["tasks.problems"] == got["eval.problems"] == problems.split()
    assert (got["tasks.examples"], got["sampling.temperature"], got["learning.lr"]) == (
        10,
        0.8,
        1e-5,
    )
    assert "orchestrator.env; not used: none." in config.notes[0]


def test_several_environments_are_joined() -> None:
    first = {
        "id": "air_mlgym",
        "args": {"task_configs": ["tasks/a.yaml", "b.yaml"], "max_turns": 3, "odd": 1},
    }
    second = {
        "id": "mlgym",
        "args": {"task_configs": ["b.yaml", "c.yaml"], "num_examples_per_task": 4},
    }
    held_out = [{"id": "mlgym", "args": {"task_configs": ["d.yaml"], "max_turns": 7}}]
    given = {
        "orchestrator.env": [first, second, {"id": "wordle"}],
        "orchestrator.eval.env": held_out,
    }
    found = from_prime_rl(given | {"orchestrator.eval.num_examples": 5}, "joined")
    tasks, held = found.config.tasks, found.config.eval
    assert tasks.options == {"problems": ["a", "b", "c"], "examples": 4}
    assert (tasks.train, found.config.sampling.max_turns, held.max_turns, held.tasks) == (
        12,
        3,
        7,
        5,
    )
    assert held.options == {"problems": ["d"]}
    assert {"tasks: wordle", "tasks: odd"} <= set(found.lost)


@pytest.mark.slow
def test_prime_rls_settings_train_as_they_are(
    uptrend: Uptrend, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rl.toml").write_text(
        (MLGYM / "rl_debug.toml").read_text() + "\n[monitors.wandb]\nproject = 'p'\n"
    )
    changes = {
        "model.name": "tiny",
        "tasks": ROOT / "recipes" / "tiny.toml",
        "sampling.max_tokens": 4,
        "eval.tasks": 2,
    }
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    printed = uptrend("train", "rl.toml", *sets, "--set", "learning.steps=1", "--no-preflight").flat
    assert printed.count("rl.toml is read as prime-rl's settings: max_steps, ") == 1
    assert "orchestrator.env; not used: monitors.wandb.project." in printed
    told = flatten(json.loads(Path("runs/rl/run.json").read_text())["config"])
    expected = {"learning.steps": 1, "sampling.size": 4, "model.lora.r": 16, "model.name": "tiny"}
    assert {key: told[key] for key in expected} == expected
    checked = uptrend("preflight", "rl.toml", *sets, "--only", "gold")
    assert checked.err.count("is read as prime-rl's settings") == 1


@pytest.mark.parametrize(
    ("name", "text", "more", "says"),
    [
        ("x.json", '{"learning_rate": 1}', (), "none of these"),
        ("x.json", "{", (), "can't be read"),
        (
            "x.toml",
            "max_steps = 3",
            (),
            "max_steps is not a known key. Did you mean learning.steps?",
        ),
        ("x.txt", "", (), "none of these"),
        ("x.py", "print(1)", (), "does not call GRPOTrainer"),
        ("x.py", "def", (), "no Python script"),
        ("x.py", "a = b\nb = a\nGRPOTrainer(model=a)", (), "no Python script"),
        (
            "x.json",
            '{"num_generations": 3, "beta": 0}',
            (),
            "no whole groups of num_generations = 3",
        ),
        (
            "x.json",
            '{"num_generations": 4, "beta": 0}',
            ("--to", "trl"),
            "convert it to a recipe first",
        ),
        ("x.toml", "seed = 1", (), "say --to trl"),
        ("x.py", "GRPOTrainer()", ("--flags", "word"), "stands after no flag"),
        ("missing.py", None, (), "missing.py does not exist: name a training script of TRL (.py)"),
    ],
)
def test_wrong_input_is_explained(
    uptrend: Uptrend, tmp_path: Path, name: str, text: str | None, more: tuple[str, ...], says: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    failed = uptrend("convert", str(tmp_path / name), "--out", str(tmp_path / "out"), *more, code=2)
    assert says in " ".join(failed.err.split())
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(uptrend: Uptrend, script: Path) -> None:
    uptrend("convert", "train.py")
    assert "recipe.toml exists: say --force" in uptrend("convert", "train.py", code=2).err
    assert (
        "train.py exists: say --force"
        in uptrend("convert", "recipe.toml", "--to", "trl", code=2).err
    )
    assert script.read_text() == SCRIPT


@pytest.fixture(scope="module")
def trl_config() -> Callable[..., Any]:
    trl = pytest.importorskip("trl")
    return lambda **values: trl.GRPOConfig(
        **{"output_dir": "out", "bf16": False, "use_cpu": True, **values}
    )


@pytest.mark.slow
def test_defaults_are_those_of_trl(trl_config: Callable[..., Any], tmp_path: Path) -> None:
    real, ours, checked = trl_config().to_dict(), flatten(to_table(load_config({}))), 0
    elsewhere = (
        "name",
        "model.",
        "learning.correction",
        "learning.steps",
    )  # of models, of vLLM alone, of the data
    for key, entry in settings().items():
        if (setting := entry.get("trl")) and not key.startswith(elsewhere):
            value = ours[key] if setting.default is None else setting.default
            told = to_theirs(key, value, "trl", ours.get)
            wrong = {n: real[n] for n, v in (told.settings if told else {}).items() if real[n] != v}
            assert not {n: v for n, v in wrong.items() if v is not None}, key
            checked += len(told.settings if told else ())
    assert checked > 20
    for name, value in real.items():
        if (known := other_default("trl", name)) is not None:
            assert known == value
    (tmp_path / "grpo_config.json").write_text(json.dumps(real))
    dumped = read_any(tmp_path / "grpo_config.json", {})
    assert isinstance(dumped, Converted)
    assert set(dumped.lost) == {"data and rewards", "num_train_epochs"}
    assert (dumped.config.sampling.groups, dumped.config.learning.loss) == (1, "dapo")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", RECIPES, ids=lambda overrides: next(iter(overrides), "defaults")
)
def test_trl_takes_what_is_written(
    trl_config: Callable[..., Any], overrides: dict[str, Any]
) -> None:
    config = load_config({}, overrides)
    told, _ = to_trainer(config, "trl")
    args = trl_config(**{key: value for key, value in told.items() if "." not in key})
    assert args.generation_batch_size == config.sampling.groups * config.sampling.size
    updates = args.num_iterations * args.steps_per_generation // args.gradient_accumulation_steps
    assert args.max_steps == config.learning.steps * updates
    assert args.get_warmup_steps(args.max_steps) == config.learning.warmup * updates
    found = from_trl(Converted("trl", {}), args.to_dict(), "dump", 1)
    assert found.config.learning == config.learning


@pytest.mark.slow
def test_the_way_there_and_back_runs(uptrend: Uptrend, script: Path) -> None:
    uptrend("convert", script, "--out", "mine")
    ran = uptrend("train", "mine/recipe.toml", "--set", "eval.tasks=1", "--no-preflight", "--quiet")
    assert (Path("runs/train") / "run.json").exists(), ran.flat
    uptrend("convert", "mine/recipe.toml", "--to", "trl", "--out", "back")
    made = runpy.run_path("back/train.py", run_name="__main__")
    assert made["args"].learning_rate == 2e-5
    assert made["trainer"].state.global_step == 8
    assert made["reward"](completions=["2"], task=[made["train"][0]["task"]])[0] in (0.0, 2.0)
