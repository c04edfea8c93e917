"""Recipes from other trainers' settings, and back; names and defaults come from
`records/dialects.toml`.

What a conversion loses is found by converting back: a setting that the recipe does not give again
is lost.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from uptrend.bridge.train_script import Script
from uptrend.config import Config, load_config, to_table
from uptrend.config.load import check_bounds, read_toml
from uptrend.config.tables import flatten, nest, to_recipe, to_toml
from uptrend.policy.known import local_folder
from uptrend.records import ConfigError
from uptrend.records.dialects import (
    is_machinery,
    names_for,
    names_of,
    other_default,
    our_value,
    settings,
    to_theirs,
)
from uptrend.records.files import MAX_RECIPE_BYTES, parse_json, parse_toml, read_named

# Settings that TRL counts in optimizer updates; ours count steps of `updates` × `minibatches`
# updates.
COUNTED = tuple(
    key for key, entry in settings().items() if "trl" in entry and entry["trl"].counts_updates
)
# Arguments of TRL that together say how many groups a step has and how long a run is.
BATCHES = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "generation_batch_size",
    "steps_per_generation",
    "num_train_epochs",
    "max_steps",
    "warmup_steps",
    "warmup_ratio",
)
# Sections that only prime-rl's settings have, and its environments that are our taskset mlgym.
PRIME_RL = {"orchestrator", "trainer"}
MLGYM = ("mlgym", "air_mlgym")
# What can be converted, in words.
CONVERTED = (
    "a training script of TRL (.py), a dumped GRPOConfig (.json), prime-rl's rl.toml, or a recipe"
)
LONGEST = 160  # characters of a reason
ALL = 100_000  # tasks, where the number of rows is not known


@dataclass
class Converted:
    """A recipe made from another trainer's settings."""

    trainer: str
    values: dict[str, Any]
    """Values by our dotted key."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files by name."""
    lost: dict[str, str] = field(default_factory=dict)
    """Reason why a setting was not translated, by its name there."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Values that were not said and are the trainer's own defaults."""
    machinery: list[str] = field(default_factory=list)
    """Settings of machine, logs and files, which were left out."""

    @property
    def config(self) -> Config:
        """The recipe, checked."""
        return load_config(nest(self.values))

    def recipe(self) -> str:
        """Return the recipe's text; defaults and what was lost follow as comments."""
        told = {
            f"From {self.trainer}'s defaults": [
                f"{key} = {to_toml(value)}" for key, value in self.defaults.items()
            ],
            "Not translated": [f"{name}: {why}" for name, why in self.lost.items()],
            "Left out, since they do not change what is learned": (
                [", ".join(self.machinery)] if self.machinery else []
            ),
        }
        lines = [
            "\n".join(("", f"# {title}:", *(f"#   {one}" for one in each), ""))
            for title, each in told.items()
            if each
        ]
        return to_recipe(nest(self.values)) + "".join(lines)

    def finish(self, given: Mapping[str, Any], used: tuple[str, ...]) -> "Converted":
        """Check the recipe, and list what converting it back does not give again."""
        self.defaults = {
            key: value for key, value in self.defaults.items() if self.values.get(key) == value
        }
        back, _ = to_trainer(self.config, self.trainer)
        first = {
            name: s.name[0]
            for e in settings().values()
            if (s := e.get(self.trainer))
            for name in s.name
        }
        read = {
            name for key in self.values if key in settings() for name in names_of(key, self.trainer)
        } - first.keys()
        for name, value in given.items():
            expected = back.get(first.get(name, name), other_default(self.trainer, name))
            is_off = expected is None and value in (False, 0, "", "no", [], {})
            is_same = value == expected or str(value) == str(expected)
            if not (value is None or name in used or name in read or is_off or is_same):
                self.lost.setdefault(name, f"{value!r} has no equivalent")
        self.machinery = [name for name in self.lost if is_machinery(self.trainer, name)]
        self.lost = {name: why for name, why in self.lost.items() if name not in self.machinery}
        self.lost = {key: " ".join(why.split())[:LONGEST] for key, why in self.lost.items()}
        return self


def load_recipe(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str] | Mapping[str, Any] = ()
) -> Config:
    """Load a recipe as `load_config` does, or prime-rl's rl.toml, with a note on what of it was
    read.
    """
    if isinstance(source, Mapping):
        return load_config(source, overrides)
    path = Path(source)
    table = read_toml(path)
    if not table and not overrides:
        raise ConfigError(f"{source} is empty: name at least tasks and model.")
    if not PRIME_RL & table.keys():
        return load_config(table, overrides, path=path)
    given = flatten(table)
    found = from_prime_rl(dict(given), path.stem)
    unused = [name for name in given if name in found.lost or name in found.machinery]
    unused += [name for name in found.lost if ": " in name]  # environments, and arguments of theirs
    used = ", ".join(name for name in given if name not in unused)
    note = (
        f"{source} is read as prime-rl's settings: {used}; not used: {', '.join(unused) or 'none'}."
    )
    config = load_config(nest(found.values), overrides)
    return replace(config, notes=(*config.notes, f"{note} As a recipe: uptrend convert {source}"))


def read_any(path: Path, flags: Mapping[str, Any], processes: int = 1) -> Converted | Config:
    """Read a TRL script or dumped GRPOConfig, prime-rl's rl.toml, or a recipe of ours, which is
    returned as it is.

    `flags` are those of the script's command line, and `processes` the number that it was started
    with.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name one file, {CONVERTED}.")
    try:
        text = read_named(path, MAX_RECIPE_BYTES).decode("utf-8")
        table = {".json": parse_json, ".toml": parse_toml}.get(path.suffix, lambda _: None)(text)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: name {CONVERTED}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file: name {CONVERTED}.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}.") from None
    table = table if isinstance(table, dict) else {}
    keys = set(table)
    if path.suffix == ".py":
        script = Script(text, path, flags)
        tasks = {f"tasks.{key}": value for key, value in script.tasks.items()}
        found = Converted("trl", tasks, script.files, script.lost)
        return from_trl(found, script.settings, path.stem, processes)
    if path.suffix == ".json" and len(keys & set(names_for("settings"))) > 1:
        lost = {"data and rewards": "GRPOConfig has none: write tasks.file and tasks.reward"}
        found = Converted("trl", {"tasks.file": "rows.jsonl"}, lost=lost)
        return from_trl(found, flatten(table) | dict(flags), path.stem, processes)
    if PRIME_RL & keys:
        return from_prime_rl(flatten(table), path.stem)
    if path.suffix == ".toml":
        return load_config(table, path=path)
    raise ConfigError(f"{path} is none of these: {CONVERTED}.")


def from_trl(found: Converted, given: dict[str, Any], name: str, processes: int) -> Converted:
    """Convert arguments of GRPOConfig; epochs become steps where tasks.train is known."""
    if not given.get("use_vllm"):  # the correction is for vLLM's probabilities
        given = {
            key: value for key, value in given.items() if not key.startswith("vllm_importance")
        }
    values = _read(found, {key: value for key, value in given.items() if key not in BATCHES}, name)
    each, accumulated = (int(given.get(key) or other_default("trl", key)) for key in BATCHES[:2])
    batch = given.get(BATCHES[2])
    reused = given.get(BATCHES[3])
    # A dump has both: their quotient knows the number of processes, which is no argument.
    whole = batch // reused if batch and reused else each * processes
    reused = reused or (batch // whole if batch else accumulated)
    rollouts = whole * max(reused, accumulated)
    minibatches = max(1, reused // accumulated)
    size = values["sampling.size"]
    updates = minibatches * values.get("learning.updates", 1)
    if rollouts % size:
        raise ConfigError(
            f"{rollouts} rollouts per step are no whole groups of num_generations = {size}. TRL"
            " refuses them too, unless several processes share them: say --processes N."
        )
    groups = values["sampling.groups"] = rollouts // size
    if groups % minibatches:
        found.lost[BATCHES[3]] = (
            f"{reused}: its {minibatches} updates per pass do not share {groups} groups"
        )
        minibatches = math.gcd(minibatches, groups)
    rows = found.values.get("tasks.train", 0)
    steps = int(given.get("max_steps") or 0)
    epochs = float(given.get("num_train_epochs") or 3)
    if steps <= 0 and rows:
        steps = max(1, math.ceil(epochs * (rows // groups))) * updates
    elif steps <= 0:
        found.lost["num_train_epochs"] = f"{epochs:g} over data of unknown size: set learning.steps"
    warmup = given.get("warmup_steps") or given.get("warmup_ratio") or 0
    counts = {"learning.minibatches": minibatches, "learning.steps": max(steps, 0)}
    counts["learning.warmup"] = math.ceil(warmup * max(steps, 0)) if warmup < 1 else int(warmup)
    values |= {
        key: count for key, count in counts.items() if count > (key == "learning.minibatches")
    }
    values |= {"checkpoints.every": 0} if given.get("save_strategy") == "no" else {}
    values |= {key: math.ceil(values[key] / updates) for key in COUNTED if values.get(key)}
    # TRL trains on all rows; a quarter of them is held out here.
    values |= {"tasks.name": "data", "tasks.train": rows or ALL}
    if given.get("reward_weights"):
        values["tasks.weights"] = given["reward_weights"]
    if given.get("epsilon") and not given.get("epsilon_high"):
        values["learning.clip_high"] = values["learning.clip_low"]
    if "learning.correction" not in values:
        values.pop("learning.correction_cap", None)
    if values["sampling.max_tokens"] > 1024:  # TRL has no limit; ours holds the prompt too
        values.setdefault("sampling.context", values["sampling.max_tokens"] + 1024)
    return found.finish(given, (*BATCHES, "reward_weights", "save_strategy", "eval_strategy"))


def from_prime_rl(given: dict[str, Any], name: str) -> Converted:
    """Convert an rl.toml; environments become `verifiers:ID`, but for MLGym's, which become
    `mlgym`, all in one.
    """
    found = Converted("prime-rl", {})
    trained, evaluated = (_take_sources(given, kind) for kind in ("train", "eval"))
    values = _read(found, given, name)
    rollouts = int(given.get("orchestrator.batch_size") or 128)
    size = values.get("sampling.size", 16)
    values["sampling.groups"], context = (
        max(1, rollouts // size),
        values.get("sampling.context", 2048),
    )
    if (
        values.get("learning.schedule", "constant") != "constant"
        and "learning.warmup" not in values
    ):
        values["learning.warmup"] = found.defaults["learning.warmup"] = 10
    if evaluated and "eval.every" in found.defaults:
        values["eval.every"] = found.defaults["eval.every"] = 100
    if values.get("sampling.max_tokens", context) >= context:  # until the context is full
        values["sampling.max_tokens"] = found.defaults["sampling.max_tokens"] = context - 1
    if values.get("eval.max_tokens", 0) >= context:
        del values["eval.max_tokens"]
    for section, sources in (("tasks", trained), ("eval", evaluated)):
        joined: list[dict[str, Any]] = []
        for i, source in enumerate(sources):
            taskset = source.get("env", {}).get("taskset", {}) or {
                "id": source.get("id"),
                **source.get("args", {}),
            }
            if taskset["id"] in MLGYM and len(joined) == i:
                joined.append(taskset)
                continue
            if i:
                found.lost[f"{section}: {source.get('name') or taskset['id']}"] = (
                    f"[{section}] has one taskset"
                )
                continue
            values |= {
                f"{section}.{key}": value for key, value in flatten(taskset).items() if key != "id"
            }
            values[f"{section}.name"] = f"verifiers:{taskset['id']}"
        if joined:
            _join_mlgym(found, section, joined)
    if not trained:
        found.lost["tasks"] = "there is no environment: set tasks.name"
    other = {key: entry["prime-rl"] for key, entry in settings().items() if "prime-rl" in entry}
    found.lost |= {
        key: setting.note
        for key, setting in other.items()
        if not setting.name and setting.default is None
    }
    return found.finish(given, ("orchestrator.batch_size",))


def _join_mlgym(found: Converted, section: str, sources: list[dict[str, Any]]) -> None:
    """Make one `mlgym` of MLGym's environments: all their tasks, and the most examples and
    turns.
    """
    problems = dict.fromkeys(
        Path(name).stem for each in sources for name in each.get("task_configs", ())
    )
    examples, turns = (
        max(each.get(key, 0) for each in sources) for key in ("num_examples_per_task", "max_turns")
    )
    is_trained = section == "tasks"
    count = len(problems) * examples
    values = {
        f"{section}.examples": examples,
        "sampling.max_turns" if is_trained else "eval.max_turns": turns,
    }
    if is_trained:  # evaluated on as many, where nothing is said
        values |= {"tasks.train": count, "eval.tasks": found.values.get("eval.tasks", count)}
    found.values |= {f"{section}.name": "mlgym", f"{section}.problems": list(problems)}
    found.values |= {key: value for key, value in values.items() if value}
    known = ("id", "task_configs", "num_examples_per_task", "max_turns")
    others = {key: value for each in sources for key, value in each.items() if key not in known}
    found.lost |= {
        f"{section}: {key}": f"{value!r}: mlgym has no such option" for key, value in others.items()
    }


def _take_sources(given: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Take the environments out of flat settings, in today's and the older form; settings of the
    first one stay.
    """
    names = [f"orchestrator.{kind}.source", f"orchestrator.{kind}.env"]
    names += ["orchestrator.env"] if kind == "train" else []
    found: list[dict[str, Any]] = next((given.pop(name) for name in names if name in given), [])
    for name, value in flatten(found[0]).items() if found else ():
        # A source's own sampling and group size win over the shared ones.
        own = (
            f"orchestrator.{kind}."
            if name.startswith(("sampling.", "num_examples", "interval"))
            else ""
        )
        own = "orchestrator." if name == "group_size" and kind == "train" else own
        if own or not name.startswith(("id", "args.", "env.taskset.")):
            given[(own or f"orchestrator.{kind}.source.") + name] = value
    return found


def _read(found: Converted, given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Translate what is given, and fill in the trainer's defaults that differ from ours."""
    ours = flatten(to_table(load_config({"model": {"lora": {}}})))
    has_adapters = any(
        key.startswith(("peft_config.", "lora_", "trainer.model.lora")) for key in given
    )
    found.values |= {"name": name}
    for key, entry in settings().items():
        setting = entry.get(found.trainer)
        names = [n for n in names_of(key, found.trainer) if given.get(n) is not None]
        if (setting is None and not names) or (key.startswith("model.lora.") and not has_adapters):
            continue
        if setting and any(given.get(beside) != value for beside, value in setting.beside.items()):
            names = []
        value = getattr(setting, "default", None)
        if names:
            value = our_value(key, given[names[0]], found.trainer, given.get)
        if value == "all-linear":
            value = []
        if value is None or (not names and ours.get(key) == value):
            continue
        try:  # types and bounds only: rules across keys need all of them
            check_bounds(load_config(nest({key: value}), checked=False))
        except ConfigError as error:
            found.lost[names[0] if names else key] = str(error)
            continue
        found.values[key] = float(value) if isinstance(ours.get(key), float) else value
        if not names:
            found.defaults[key] = value
    return found.values


def to_trainer(config: Config, trainer: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a recipe as another trainer's settings by dotted name, and our keys that it can't be
    told, with why.
    """
    plain = flatten(to_table(config))
    ours = flatten(to_table(load_config({})))
    ours = {
        key: plain[key] if key in ("eval.name", "eval.seed") else value
        for key, value in ours.items()
    }
    told = dict[str, Any]()
    lost = dict[str, str]()
    w = config.learning
    updates = w.updates * w.minibatches if trainer == "trl" else 1
    for key, value in plain.items():
        setting = settings().get(key, {}).get(trainer)
        found = to_theirs(key, value * updates if key in COUNTED else value, trainer, plain.get)
        if found and (found.settings or (setting and setting.name and value in setting.values)):
            told |= found.settings
        elif (
            not key.startswith("tasks.")
            and key in ours
            and value != (setting.default if setting else ours[key])
        ):
            lost[key] = (
                f"{to_toml(value)}:"
                f" {(setting and setting.note) or f'{trainer} has no such setting'}"
            )
    told = {name: value for name, value in told.items() if value is not None}
    if trainer == "trl":
        groups = config.sampling.groups // w.minibatches
        # A mean over a micro-batch's tokens needs all rollouts of an update in one; other losses
        # add up exactly.
        micro, accumulated = (groups, 1) if w.loss == "bnpo" else (1, groups)
        told |= dict(zip(BATCHES, (micro * config.sampling.size, accumulated), strict=False))
        told["steps_per_generation"] = accumulated * w.minibatches
        told |= {
            "per_device_eval_batch_size": config.sampling.size,
            "output_dir": f"runs/{config.name}",
        }
        if w.warmup and w.schedule == "constant":
            told["lr_scheduler_type"] = "constant_with_warmup"
        if told.get("peft_config.target_modules") == []:
            told["peft_config.target_modules"] = "all-linear"
        lost = {
            key: why
            for key, why in lost.items()
            if key not in ("sampling.groups", "learning.minibatches")
        }
    elif w.schedule == "linear":
        told["trainer.scheduler.decay_steps"] = w.steps - w.warmup
    elif w.schedule == "constant" and told.pop("trainer.scheduler.warmup_steps", None):
        lost["learning.warmup"] = f"{w.warmup}: its constant schedule has no warm-up"
    return told, lost


def write_trl(config: Config, recipe: Path, script: Path) -> tuple[str, dict[str, str]]:
    """Return a training script of TRL with a recipe's settings, tasks and reward, and what it can't
    be told.
    """
    told, lost = to_trainer(config, "trl")
    arguments = nest(told)
    adapter = ""
    if lora := arguments.pop("peft_config", None):
        options = ", ".join(
            f"{key}={value!r}" for key, value in {**lora, "task_type": "CAUSAL_LM"}.items()
        )
        adapter = f"\n    peft_config=LoraConfig({options}),"
    text = Path(__file__).parent.joinpath("templates", "train.py.txt").read_text(encoding="utf-8")
    return (
        text.format(
            recipe=recipe.name,
            script=script,
            relative=os.path.relpath(recipe.resolve(), script.parent.resolve()),
            arguments="\n".join(f"    {key}={value!r}," for key, value in arguments.items()),
            lora=adapter,
            model=str(local_folder(config.model.name) or config.model.name),
            lora_import="\nfrom peft import LoraConfig" if lora else "",
            lost="".join(f"\n# Not translated: {key} = {why}" for key, why in lost.items()),
        ),
        lost,
    )


def write_prime_rl(config: Config) -> tuple[str, dict[str, str]]:
    """Return prime-rl's rl.toml with a recipe's settings, and what it can't be told."""
    told, lost = to_trainer(config, "prime-rl")
    for section, where in (("tasks", "train"), ("eval", "eval")):
        named = getattr(config, section)
        if named.name.startswith("verifiers:"):
            taskset = {"id": named.name.partition(":")[2], **named.options}
            told[f"orchestrator.{where}.source"] = [{"env": {"taskset": taskset}}]
        else:
            lost[f"{section}.name"] = f"{named.name!r}: prime-rl takes environments of verifiers"
    if not config.eval.every or "eval.name" in lost:  # it wants an evaluation whole or not at all
        told = {
            name: value for name, value in told.items() if not name.startswith("orchestrator.eval.")
        }
    comments = "".join(f"# Not translated: {key} = {why}\n" for key, why in lost.items())
    return f"{to_recipe(nest(told))}\n{comments}", lost
