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
from uptrend.config.load import check_bounds, chosen_keys, read_toml
from uptrend.config.tables import flatten, nest, to_recipe, to_toml
from uptrend.policy.known import local_folder, with_known_lr
from uptrend.records import ConfigError, Run
from uptrend.records.dialects import (
    Setting,
    is_machinery,
    names_for,
    names_of,
    other_default,
    our_value,
    settings,
    to_theirs,
)
from uptrend.records.files import MAX_RECIPE_BYTES, parse_json, parse_toml, read_named
from uptrend.tasks.pool import DEFAULT_LIMITS, with_own_limits

# Settings that TRL counts in optimizer updates; ours count steps of `updates` × `minibatches`
# updates.
KEYS_IN_UPDATES = tuple(
    key for key, entry in settings().items() if "trl" in entry and entry["trl"].counts_updates
)
# Arguments of TRL that together say how many groups a step has and how long a run is.
BATCH_ARGUMENTS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "generation_batch_size",
    "steps_per_generation",
    "num_train_epochs",
    "max_steps",
    "warmup_steps",
    "warmup_ratio",
)
# Arguments of TRL that are translated without a name in `dialects.toml`, or mean nothing here.
OTHER_READ_ARGUMENTS = ("reward_weights", "save_strategy", "eval_strategy")
# Argument of TRL with the variables of the chat template.
TRL_TEMPLATE = "chat_template_kwargs"
# Clip of a GRPOConfig where none is set, also for gspo, for which we have a smaller one.
TRL_EPSILON = 0.2
# Epochs of a GRPOConfig where none are set, as in transformers' TrainingArguments.
DEFAULT_EPOCHS = 3
# Tokens of a prompt for which a sampling.context leaves room. Up to as many of a completion fit
# into its default of 2048.
PROMPT_TOKENS = 1024
# Sections that only prime-rl's settings have, and its environments that are our taskset mlgym.
PRIME_RL_SECTIONS = {"orchestrator", "trainer"}
MLGYM_IDS = ("mlgym", "air_mlgym")
MLGYM_OPTIONS = ("id", "task_configs", "num_examples_per_task", "max_turns")
# prime-rl's defaults that hold only beside other settings: rollouts per step; steps of a warmup,
# with a schedule; and steps between evaluations, with environments for them.
PRIME_RL_BATCH_SIZE = 128
PRIME_RL_WARMUP_STEPS = 10
PRIME_RL_EVAL_INTERVAL = 100
CONVERTIBLE_FILES = (
    "a training script of TRL (.py), a dumped GRPOConfig (.json), prime-rl's rl.toml, or a recipe"
)
MAX_REASON_CHARACTERS = 160
# Value of tasks.train for a dataset whose number of rows is not known.
ALL_TASKS = 100_000


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
    """Values that were not set and are the trainer's own defaults."""
    machinery: list[str] = field(default_factory=list)
    """Settings of machine, logs and files, which were left out."""

    @property
    def config(self) -> Config:
        """The recipe, checked."""
        return load_config(nest(self.values))

    def recipe(self) -> str:
        """Return the recipe's text; defaults and what was lost follow as comments."""
        comments = {
            f"From {self.trainer}'s defaults": [
                f"{key} = {to_toml(value)}" for key, value in self.defaults.items()
            ],
            "Not translated": [f"{name}: {reason}" for name, reason in self.lost.items()],
            "Left out, since they do not change what is learned": (
                [", ".join(self.machinery)] if self.machinery else []
            ),
        }
        text = to_recipe(nest(self.values))
        for title, lines in comments.items():
            if lines:
                commented = [f"#   {line}" for line in lines]
                text += "\n".join(["", f"# {title}:", *commented, ""])
        return text

    def finish(self, arguments: Mapping[str, Any], read_elsewhere: tuple[str, ...]) -> "Converted":
        """Check the recipe, and list the arguments that converting it back does not give again.

        Those of `read_elsewhere` were translated by other rules than `dialects.toml`.
        """
        # A default that a later rule has overwritten is the trainer's no more.
        for key, value in list(self.defaults.items()):
            if self.values.get(key) != value:
                del self.defaults[key]
        self._leave_out_what_is_chosen_alike()

        self._list_lost(arguments, read_elsewhere)

        self.machinery = [name for name in self.lost if is_machinery(self.trainer, name)]
        for name in self.machinery:
            del self.lost[name]
        for name, reason in self.lost.items():
            self.lost[name] = " ".join(reason.split())[:MAX_REASON_CHARACTERS]
        return self

    def _leave_out_what_is_chosen_alike(self) -> None:
        """Leave out defaults of the trainer that a run of ours would choose too. A taskset's own
        limits are known of `data` alone.
        """
        stated = {key: value for key, value in self.values.items() if key not in self.defaults}
        ours = flatten(to_table(load_config(nest(stated), checked=False)))
        keys = chosen_keys() & self.defaults.keys()
        if self.values.get("tasks.name") != "data":
            keys -= {f"sampling.{name}" for name in DEFAULT_LIMITS}
        for key in keys - {"learning.lr"}:
            if self.values[key] == ours[key]:
                del self.values[key], self.defaults[key]

    def _list_lost(self, arguments: Mapping[str, Any], read_elsewhere: tuple[str, ...]) -> None:
        """Convert the recipe back, and add the arguments that come back with another value."""
        round_trip, _ = to_trainer(self.config, self.trainer)
        first_names = _first_names(self.trainer)
        # Older and shorter names of settings, which converting back does not give.
        other_names: set[str] = set()
        for key in self.values:
            if key in settings():
                other_names.update(names_of(key, self.trainer))
        other_names -= first_names.keys()
        for name, value in arguments.items():
            if value is None or name in read_elsewhere or name in other_names:
                continue
            default = other_default(self.trainer, name)
            expected = round_trip.get(first_names.get(name, name), default)
            is_off = expected is None and value in (False, 0, "", "no", [], {})
            is_same = value == expected or str(value) == str(expected)
            if not is_off and not is_same:
                self.lost.setdefault(name, f"{value!r} has no equivalent")


def _first_names(trainer: str) -> dict[str, str]:
    """Return the name under which each setting is written, by any of its names."""
    first_names: dict[str, str] = {}
    for entry in settings().values():
        setting = entry.get(trainer)
        if setting:
            for name in setting.name:
                first_names[name] = setting.name[0]
    return first_names


def load_recipe(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str] | Mapping[str, Any] = ()
) -> Config:
    """Load a recipe as `load_config` does; prime-rl's rl.toml, with a note on what of it was read;
    or the recipe of a run directory, which has the config.
    """
    if isinstance(source, Mapping):
        return load_config(source, overrides)
    path = Path(source)
    if (path / "run.json").is_file():
        return load_config(Run(path).config, overrides)
    table = read_toml(path)
    if not table and not overrides:
        raise ConfigError(f"{source} is empty: name at least tasks and model.")
    if not PRIME_RL_SECTIONS & table.keys():
        return load_config(table, overrides, path=path)

    arguments = flatten(table)
    converted = from_prime_rl(arguments, path.stem)
    unused: list[str] = []
    for name in arguments:
        if name in converted.lost or name in converted.machinery:
            unused.append(name)
    used = ", ".join(name for name in arguments if name not in unused)
    # Environments and arguments of theirs are lost under a name that is none of the file's.
    unused += [name for name in converted.lost if ": " in name]
    note = (
        f"{source} is read as prime-rl's settings: {used}; not used: {', '.join(unused) or 'none'}."
        f" As a recipe: uptrend convert {source}"
    )
    config = load_config(nest(converted.values), overrides)
    return replace(config, notes=(*config.notes, note))


def read_any(path: Path, flags: Mapping[str, Any], processes: int = 1) -> Converted | Config:
    """Read a TRL script or dumped GRPOConfig, prime-rl's rl.toml, or a recipe of ours, which is
    returned as it is.

    `flags` are those of the script's command line, and `processes` the number that it was started
    with.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name one file, {CONVERTIBLE_FILES}.")
    table: Any = None
    try:
        text = read_named(path, MAX_RECIPE_BYTES).decode("utf-8")
        if path.suffix == ".json":
            table = parse_json(text)
        elif path.suffix == ".toml":
            table = parse_toml(text)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: name {CONVERTIBLE_FILES}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file: name {CONVERTIBLE_FILES}.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}.") from None
    if not isinstance(table, dict):
        table = {}

    if path.suffix == ".py":
        script = Script(text, path, flags)
        tasks = {f"tasks.{key}": value for key, value in script.tasks.items()}
        converted = Converted("trl", tasks, script.files, script.lost)
        return from_trl(converted, script.settings, path.stem, processes)
    n_settings = len(table.keys() & set(names_for("settings")))
    if path.suffix == ".json" and n_settings > 1:
        lost = {"data and rewards": "GRPOConfig has none: write tasks.file and tasks.reward"}
        converted = Converted("trl", {"tasks.file": "rows.jsonl"}, lost=lost)
        return from_trl(converted, flatten(table) | dict(flags), path.stem, processes)
    if PRIME_RL_SECTIONS & table.keys():
        return from_prime_rl(flatten(table), path.stem)
    if path.suffix == ".toml":
        # The other trainer has what a run would choose, as far as it is known here.
        return with_known_lr(with_own_limits(load_config(table, path=path)))
    raise ConfigError(f"{path} is none of these: {CONVERTIBLE_FILES}.")


def from_trl(
    converted: Converted, arguments: dict[str, Any], name: str, processes: int
) -> Converted:
    """Convert arguments of GRPOConfig; epochs become steps if tasks.train is known."""
    if not arguments.get("use_vllm"):  # the correction is for vLLM's probabilities
        arguments = {
            key: arguments[key] for key in arguments if not key.startswith("vllm_importance")
        }
    others = {key: arguments[key] for key in arguments if key not in BATCH_ARGUMENTS}
    values = _translate(converted, others, name)
    batching = trl_batching(arguments, processes)
    _set_batches(converted, batching)
    # One step of ours generates once. Also where the minibatches had to be reduced, these are TRL's
    # updates: its counts of updates are divided by them.
    passes_over_rollouts = values.get("learning.updates", 1)
    updates_per_step = int(batching.updates_per_generation * passes_over_rollouts)
    _set_length_in_updates(converted, arguments, updates_per_step)
    if arguments.get("save_strategy") == "no":
        values["checkpoints.every"] = 0
    # Until here in optimizer updates, from here on in steps.
    for key in KEYS_IN_UPDATES:
        if values.get(key):
            values[key] = math.ceil(values[key] / updates_per_step)

    # TRL trains on all rows; a quarter of them is held out here.
    values["tasks.name"] = "data"
    values["tasks.train"] = values.get("tasks.train") or ALL_TASKS
    for name, value in arguments.items():
        if name.startswith(f"{TRL_TEMPLATE}."):
            values[f"model.template{name.removeprefix(TRL_TEMPLATE)}"] = value
    if arguments.get("reward_weights"):
        values["tasks.weights"] = arguments["reward_weights"]
    if arguments.get("epsilon") and not arguments.get("epsilon_high"):
        values["learning.clip_high"] = values["learning.clip_low"]
    if "learning.correction" not in values:
        values.pop("learning.correction_cap", None)
    if values.get("learning.loss") == "gspo":
        for key in ("learning.clip_low", "learning.clip_high"):
            if key not in values:
                values[key] = converted.defaults[key] = TRL_EPSILON
    # TRL has no limit; ours holds the prompt too.
    max_tokens = values["sampling.max_tokens"]
    if max_tokens > PROMPT_TOKENS:
        values.setdefault("sampling.context", max_tokens + PROMPT_TOKENS)
    return converted.finish(arguments, (*BATCH_ARGUMENTS, *OTHER_READ_ARGUMENTS))


@dataclass(frozen=True)
class TrlBatching:
    """Division of a generation's rollouts into passes and updates.

    A pass is one micro-batch on every process. With 8 rollouts per device on one process, 4 passes
    per update and 8 per generation, 64 rollouts are generated and train in 2 updates of 32.
    """

    rollouts_per_pass: int
    passes_per_update: int
    passes_per_generation: int

    @property
    def rollouts_per_generation(self) -> int:
        """Number of rollouts; enough for one update at least."""
        return self.rollouts_per_pass * max(self.passes_per_generation, self.passes_per_update)

    @property
    def updates_per_generation(self) -> int:
        """Number of updates in which each rollout is trained on once."""
        return max(1, self.passes_per_generation // self.passes_per_update)


def trl_batching(arguments: Mapping[str, Any], processes: int) -> TrlBatching:
    """Return the batching of GRPOConfig's arguments, with TRL's defaults where they are not set."""
    per_device, passes_per_update = (
        int(arguments.get(name) or other_default("trl", name))
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    rollouts_per_pass = per_device * processes
    rollouts = arguments.get("generation_batch_size")
    passes = arguments.get("steps_per_generation")
    if rollouts and passes:
        # A dump has both: their quotient knows the number of processes, which is no argument.
        return TrlBatching(rollouts // passes, passes_per_update, passes)
    if rollouts:
        return TrlBatching(rollouts_per_pass, passes_per_update, rollouts // rollouts_per_pass)
    return TrlBatching(rollouts_per_pass, passes_per_update, passes or passes_per_update)


def _set_batches(converted: Converted, batching: TrlBatching) -> None:
    """Set groups and minibatches of a step."""
    values = converted.values
    n_rollouts = batching.rollouts_per_generation
    group_size = values["sampling.size"]
    if n_rollouts % group_size:
        raise ConfigError(
            f"{n_rollouts} rollouts per step are no whole groups of num_generations ="
            f" {group_size}. TRL refuses them too, unless several processes share them: say"
            " --processes N."
        )
    groups = n_rollouts // group_size
    values["sampling.groups"] = groups
    minibatches = batching.updates_per_generation
    if groups % minibatches:
        converted.lost["steps_per_generation"] = (
            f"{batching.passes_per_generation}: its {minibatches} updates per pass do not share"
            f" {groups} groups"
        )
        minibatches = math.gcd(minibatches, groups)
    if minibatches > 1:
        values["learning.minibatches"] = minibatches


def _set_length_in_updates(
    converted: Converted, arguments: Mapping[str, Any], updates_per_step: int
) -> None:
    """Set the lengths of a run and of its warmup, in optimizer updates as TRL counts them."""
    values = converted.values
    n_rows = values.get("tasks.train", 0)
    n_updates = int(arguments.get("max_steps") or 0)
    epochs = float(arguments.get("num_train_epochs") or DEFAULT_EPOCHS)
    if n_updates <= 0 and n_rows:
        steps_per_epoch = n_rows // values["sampling.groups"]
        n_updates = max(1, math.ceil(epochs * steps_per_epoch)) * updates_per_step
    elif n_updates <= 0:
        n_updates = 0
        converted.lost["num_train_epochs"] = (
            f"{epochs:g} over data of unknown size: set learning.steps"
        )
    if n_updates:
        values["learning.steps"] = n_updates
    warmup = arguments.get("warmup_steps") or arguments.get("warmup_ratio") or 0
    # A warmup below 1 is a share of the run.
    warmup_updates = math.ceil(warmup * n_updates) if warmup < 1 else int(warmup)
    if warmup_updates > 0:
        values["learning.warmup"] = warmup_updates


def from_prime_rl(arguments: dict[str, Any], name: str) -> Converted:
    """Convert an rl.toml; environments become `verifiers:ID`, but for MLGym's, which become
    `mlgym`, all in one.
    """
    converted = Converted("prime-rl", {})
    train_sources, arguments = _split_sources(arguments, "train")
    eval_sources, arguments = _split_sources(arguments, "eval")
    values = _translate(converted, arguments, name)
    defaults = converted.defaults
    our_sampling = load_config({}).sampling
    n_rollouts = int(arguments.get("orchestrator.batch_size") or PRIME_RL_BATCH_SIZE)
    group_size = values.get("sampling.size", our_sampling.size)
    context = values.get("sampling.context", our_sampling.context)
    values["sampling.groups"] = max(1, n_rollouts // group_size)
    schedule = values.get("learning.schedule", "constant")
    if schedule != "constant" and "learning.warmup" in defaults:
        values["learning.warmup"] = defaults["learning.warmup"] = PRIME_RL_WARMUP_STEPS
    if eval_sources and "eval.every" in defaults:
        values["eval.every"] = defaults["eval.every"] = PRIME_RL_EVAL_INTERVAL
    # Without a limit of its own, a completion may fill the context.
    if values.get("sampling.max_tokens", context) >= context:
        values["sampling.max_tokens"] = defaults["sampling.max_tokens"] = context - 1
    if values.get("eval.max_tokens", 0) >= context:
        del values["eval.max_tokens"]

    _add_tasksets(converted, "tasks", train_sources)
    _add_tasksets(converted, "eval", eval_sources)
    if not train_sources:
        converted.lost["tasks"] = "there is no environment: set tasks.name"
    for key, entry in settings().items():
        setting = entry.get("prime-rl")
        if setting and not setting.name and setting.default is None:
            converted.lost[key] = setting.note
    return converted.finish(arguments, ("orchestrator.batch_size",))


def _add_tasksets(converted: Converted, section: str, sources: list[dict[str, Any]]) -> None:
    """Set a section's taskset: the first of the environments, or all of MLGym's that come first."""
    values = converted.values
    mlgym_tasksets: list[dict[str, Any]] = []
    for index, source in enumerate(sources):
        taskset = source.get("env", {}).get("taskset", {})
        if not taskset:
            taskset = {"id": source.get("id"), **source.get("args", {})}
        if taskset["id"] in MLGYM_IDS and len(mlgym_tasksets) == index:
            mlgym_tasksets.append(taskset)
        elif index:
            name = source.get("name") or taskset["id"]
            converted.lost[f"{section}: {name}"] = f"[{section}] has one taskset"
        else:
            for key, value in flatten(taskset).items():
                if key != "id":
                    values[f"{section}.{key}"] = value
            values[f"{section}.name"] = f"verifiers:{taskset['id']}"
    if mlgym_tasksets:
        _join_mlgym(converted, section, mlgym_tasksets)


def _join_mlgym(converted: Converted, section: str, tasksets: list[dict[str, Any]]) -> None:
    """Make one `mlgym` of MLGym's environments: all their tasks, and the most examples and
    turns.
    """
    problems: list[str] = []
    for taskset in tasksets:
        problems += [Path(name).stem for name in taskset.get("task_configs", ())]
    problems = list(dict.fromkeys(problems))
    examples = max(taskset.get("num_examples_per_task", 0) for taskset in tasksets)
    max_turns = max(taskset.get("max_turns", 0) for taskset in tasksets)

    values = converted.values
    values[f"{section}.name"] = "mlgym"
    values[f"{section}.problems"] = problems
    if examples:
        values[f"{section}.examples"] = examples
    if max_turns:
        values["sampling.max_turns" if section == "tasks" else "eval.max_turns"] = max_turns
    n_tasks = len(problems) * examples
    if section == "tasks" and n_tasks:
        values["tasks.train"] = n_tasks
        values.setdefault("eval.tasks", n_tasks)
    for taskset in tasksets:
        for key, value in taskset.items():
            if key not in MLGYM_OPTIONS:
                converted.lost[f"{section}: {key}"] = f"{value!r}: mlgym has no such option"


def _split_sources(
    arguments: Mapping[str, Any], kind: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the environments of flat settings, in today's and the older form, and all other
    settings, with those of the first environment.
    """
    others = dict(arguments)
    names = [f"orchestrator.{kind}.source", f"orchestrator.{kind}.env"]
    if kind == "train":
        names.append("orchestrator.env")
    name = next((name for name in names if name in arguments), None)
    sources: list[dict[str, Any]] = others.pop(name) if name else []
    if not sources:
        return [], others
    for key, value in flatten(sources[0]).items():
        # A source's own sampling and group size win over the shared ones.
        if key == "group_size" and kind == "train":
            others[f"orchestrator.{key}"] = value
        elif key.startswith(("sampling.", "num_examples", "interval")):
            others[f"orchestrator.{kind}.{key}"] = value
        elif not key.startswith(("id", "args.", "env.taskset.")):
            others[f"orchestrator.{kind}.source.{key}"] = value
    return sources, others


def _translate(converted: Converted, arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Translate arguments, and fill in the trainer's defaults that differ from ours; return the
    recipe's values.
    """
    trainer = converted.trainer
    our_defaults = flatten(to_table(load_config({"model": {"lora": {}}})))
    adapter_prefixes = ("peft_config.", "lora_", "trainer.model.lora")
    has_adapters = any(argument.startswith(adapter_prefixes) for argument in arguments)
    converted.values["name"] = name
    for key in settings():
        if key.startswith("model.lora.") and not has_adapters:
            continue
        argument, value = _value_of(key, trainer, arguments)
        is_default = not argument
        # A value that the run would choose is stated, even where it may come out the same.
        is_ours = key not in chosen_keys() and our_defaults.get(key) == value
        if value is None or (is_default and is_ours):
            continue
        try:  # types and bounds only: rules across keys need all of them
            check_bounds(load_config(nest({key: value}), checked=False))
        except ConfigError as error:
            converted.lost[argument or key] = str(error)
            continue
        is_float = isinstance(our_defaults.get(key), float)
        converted.values[key] = float(value) if is_float else value
        if is_default:
            converted.defaults[key] = value
    return converted.values


def _value_of(key: str, trainer: str, arguments: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the argument that sets one of our keys, and its value for us.

    Without such an argument the name is empty and the value the trainer's default; None if it has
    none.
    """
    setting = settings()[key].get(trainer)
    names = [name for name in names_of(key, trainer) if arguments.get(name) is not None]
    if setting:
        # A setting means our key only beside certain values of others.
        for name, needed_value in setting.beside.items():
            if arguments.get(name) != needed_value:
                names = []
    if names:
        argument = names[0]
        value = our_value(key, arguments[argument], trainer, arguments.get)
    else:
        argument = ""
        value = setting.default if setting else None
    if value == "all-linear":  # no list of layers means the same in model.lora
        value = []
    return argument, value


def to_trainer(config: Config, trainer: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a recipe as another trainer's settings by dotted name, and the reason why each of our
    keys has no such setting.
    """
    values = flatten(to_table(config))
    defaults = flatten(to_table(load_config({})))
    # The held-out tasks are no setting of a trainer, and never listed as lost.
    defaults |= {key: values[key] for key in ("eval.name", "eval.seed")}
    learning = config.learning
    updates = learning.updates * learning.minibatches if trainer == "trl" else 1
    theirs: dict[str, Any] = {}
    lost: dict[str, str] = {}
    for key, value in values.items():
        setting = settings().get(key, {}).get(trainer)
        counted = value * updates if key in KEYS_IN_UPDATES else value
        assignment = to_theirs(key, counted, trainer, values.get)
        if assignment and (assignment.settings or _is_left_out(setting, value)):
            theirs |= assignment.settings
        elif key in defaults and not key.startswith("tasks."):
            default = setting.default if setting else defaults[key]
            if value != default:
                note = setting.note if setting else ""
                lost[key] = f"{to_toml(value)}: {note or f'{trainer} has no such setting'}"
    theirs = {name: value for name, value in theirs.items() if value is not None}

    template = flatten(config.model.template)
    if trainer == "trl":
        theirs |= {f"{TRL_TEMPLATE}.{name}": value for name, value in template.items()}
    elif template:
        lost["model.template"] = f"{to_toml(config.model.template)}: {trainer} has no such setting"

    if trainer == "trl":
        _add_trl_batches(config, theirs)
        for key in ("sampling.groups", "learning.minibatches"):
            lost.pop(key, None)
    elif learning.schedule == "linear":
        theirs["trainer.scheduler.decay_steps"] = learning.steps - learning.warmup
    elif learning.schedule == "constant" and theirs.pop("trainer.scheduler.warmup_steps", None):
        lost["learning.warmup"] = f"{learning.warmup}: its constant schedule has no warm-up"
    return theirs, lost


def _is_left_out(setting: Setting | None, value: Any) -> bool:
    """Return True if a value is translated by leaving out the setting."""
    return bool(setting and setting.name and value in setting.values)


def _add_trl_batches(config: Config, arguments: dict[str, Any]) -> None:
    """Add the arguments of TRL that depend on several of our keys."""
    learning = config.learning
    group_size = config.sampling.size
    groups_per_update = config.sampling.groups // learning.minibatches
    # A mean over a micro-batch's tokens needs all rollouts of an update in one; other losses add up
    # exactly.
    groups_per_pass = 1
    accumulated = groups_per_update
    if learning.loss == "bnpo":
        groups_per_pass = groups_per_update
        accumulated = 1
    arguments |= {
        "per_device_train_batch_size": groups_per_pass * group_size,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * learning.minibatches,
        "per_device_eval_batch_size": group_size,
        "output_dir": f"runs/{config.name}",
    }
    if learning.warmup and learning.schedule == "constant":
        arguments["lr_scheduler_type"] = "constant_with_warmup"
    if arguments.get("peft_config.target_modules") == []:
        arguments["peft_config.target_modules"] = "all-linear"


def write_trl(config: Config, recipe: Path, script: Path) -> tuple[str, dict[str, str]]:
    """Return a training script of TRL with a recipe's settings, tasks and reward, and the reason
    why each key was lost.
    """
    _refuse_sources(config)
    settings_of_trl, lost = to_trainer(config, "trl")
    arguments = nest(settings_of_trl)
    lora = arguments.pop("peft_config", None)
    adapter = ""
    if lora:
        lora["task_type"] = "CAUSAL_LM"
        options = ", ".join(f"{key}={value!r}" for key, value in lora.items())
        adapter = f"\n    peft_config=LoraConfig({options}),"
    template = Path(__file__).parent / "templates" / "train.py.txt"
    text = template.read_text(encoding="utf-8").format(
        recipe=recipe.name,
        script=script,
        relative=os.path.relpath(recipe.resolve(), script.parent.resolve()),
        arguments="\n".join(f"    {key}={value!r}," for key, value in arguments.items()),
        lora=adapter,
        model=str(local_folder(config.model.name) or config.model.name),
        lora_import="\nfrom peft import LoraConfig" if lora else "",
        lost="".join(f"\n# Not translated: {key} = {why}" for key, why in lost.items()),
    )
    return text, lost


def write_prime_rl(config: Config) -> tuple[str, dict[str, str]]:
    """Return prime-rl's rl.toml with a recipe's settings, and the reason why each key was lost."""
    _refuse_sources(config)
    theirs, lost = to_trainer(config, "prime-rl")
    for section, kind in (("tasks", "train"), ("eval", "eval")):
        tasks = getattr(config, section)
        if tasks.name.startswith("verifiers:"):
            taskset = {"id": tasks.name.removeprefix("verifiers:"), **tasks.options}
            theirs[f"orchestrator.{kind}.source"] = [{"env": {"taskset": taskset}}]
        else:
            lost[f"{section}.name"] = f"{tasks.name!r}: prime-rl takes environments of verifiers"
    # prime-rl takes an evaluation whole or not at all.
    if not config.eval.every or "eval.name" in lost:
        for name in [name for name in theirs if name.startswith("orchestrator.eval.")]:
            del theirs[name]
    comments = [f"# Not translated: {key} = {reason}\n" for key, reason in lost.items()]
    return f"{to_recipe(nest(theirs))}\n{''.join(comments)}", lost


def _refuse_sources(config: Config) -> None:
    """Raise ConfigError for a recipe with several tasksets, which are not translated."""
    if config.sources:
        labels = ", ".join(source.label for source in config.sources)
        raise ConfigError(
            f"[[tasks]] has several tasksets ({labels}), and only one is translated: write the"
            " others with the other trainer's own means, and leave them out here."
        )
