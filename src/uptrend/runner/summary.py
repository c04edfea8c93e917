"""Summaries of runs as plain objects: the same for the terminal, for --json and for the dashboard."""

import contextlib
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from uptrend.config import difference
from uptrend.config.load import nearest
from uptrend.config.tables import flatten
from uptrend.doctor.saved import latest_report
from uptrend.policy.known import local_folder
from uptrend.present.formatting import estimate
from uptrend.records import RecordError, Role, Run
from uptrend.records.directory import LOG
from uptrend.records.files import reading_below
from uptrend.records.memory import read_file
from uptrend.records.rollout import places_said

CURVES = (
    "reward/mean", "advantage/dead/share", "sampling/length/mean", "kl/reference/mean", "learner/entropy/mean",
    "gradient/norm/before",
)  # fmt: skip
HELD_OUT = "held-out accuracy"
SETTINGS = {"model": "model.name", "taskset": "tasks.name", "loss": "learning.loss", "seed": "seed"}
CAVEAT = (
    "This compares these two models on these tasks. It does not say that one config is better than the "
    "other: another seed of the same config is another model."
)


@dataclass(frozen=True)
class HeldOutSummary:
    """Accuracy of one evaluation, with its 95% interval."""

    step: int
    accuracy: float
    low: float
    high: float
    correct: int
    tasks: int

    def __str__(self) -> str:
        return estimate(self.accuracy, self.low, self.high)


def open_run(named: str | Path, folder: Path = Path("runs")) -> Run:
    """Open a run by its path, or by its name under ./runs."""
    for path in (Path(named), folder / named):
        if (path / "run.json").exists():
            return Run(path)
    if Path(named).exists():
        raise RecordError(
            f"{named} is no run of Uptrend: it has no run.json. Other trainers' logs: uptrend doctor {named}"
        )
    names = sorted(path.parent.name for path in folder.glob("*/run.json"))
    here = f" {folder}/ holds {', '.join(names)}." if names else ""
    raise RecordError(f"There is no run at {named} or {folder / named}.{nearest(str(named), names) or here}")


def find_runs(folder: Path) -> tuple[list[dict[str, Any]], dict[Path, str]]:
    """Summarize the runs of a folder, newest first; return unreadable ones with the reason."""
    runs: list[dict[str, Any]] = []
    broken: dict[Path, str] = {}
    for path in sorted(folder.glob("*/run.json")):
        try:
            runs.append(summarize(Run(path.parent)))
        except RecordError as error:
            broken[path.parent] = str(error)
        except Exception as error:  # a damaged record may hold anything anywhere, and the next one is not to blame
            broken[path.parent] = f"{path.parent} does not read as a run: {type(error).__name__} {error}."
    return sorted(runs, key=lambda run: str(run["started"] or ""), reverse=True), broken


def held_out(run: Run, label: str = "") -> list[HeldOutSummary]:
    """Return a run's evaluations in order; those on a further set by its label."""
    names = [field.name for field in fields(HeldOutSummary)]
    lines = [line.get("sets", {}).get(label) if label else line for line in run.eval_lines]
    return [HeldOutSummary(**{name: line[name] for name in names}) for line in lines if line is not None]


def further_sets(run: Run) -> dict[str, list[HeldOutSummary]]:
    """Return a run's evaluations on further held-out sets, by label."""
    return {label: held_out(run, label) for line in run.eval_lines for label in line.get("sets", ())}


def summarize(run: Run) -> dict[str, Any]:
    """Summarize a run for one line of a list."""
    config, evaluations = flatten(run.config), [asdict(e) for e in held_out(run)]
    seconds = [line["seconds/step"] for line in run.metric_lines if line.get("seconds/step") is not None]
    return {
        "name": run.name,
        "path": str(run.path),
        "status": run.status,
        "step": run.last_step,
        "steps": run.steps,
        **{name: config.get(key) for name, key in SETTINGS.items()},
        "before": next((e for e in evaluations if e["step"] == run.start), None),
        "after": next((e for e in reversed(evaluations) if e["step"] > run.start), None),
        "reward": run.metric_lines[-1].get("reward/mean") if run.metric_lines else None,
        "started": run.info.get("created"),
        "seconds_per_step": statistics.median(seconds) if seconds else None,
    }


def curves(run: Run) -> dict[str, list[float | None]]:
    """Return the curves to show, by metric: one value per step, or per evaluation."""
    shown: dict[str, list[float | None]] = {HELD_OUT: [e.accuracy for e in held_out(run)]}
    shown |= {f"eval/set/{label}/accuracy": [e.accuracy for e in found] for label, found in further_sets(run).items()}
    for key in CURVES:
        shown[key] = [line.get(key) for line in run.metric_lines]
    return {key: values for key, values in shown.items() if any(value is not None for value in values)}


def phases(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean seconds of each phase of a step."""
    sums: defaultdict[str, float] = defaultdict(float)
    for key, value in itertools.chain.from_iterable(line.items() for line in lines):
        if key.startswith("seconds/") and key != "seconds/step" and value is not None:
            sums[key.removeprefix("seconds/")] += value
    return {phase: total / len(lines) for phase, total in sums.items()}


def describe(run: Run) -> dict[str, Any]:
    """Describe a run in full."""
    files = Counter[str]()
    for path in sorted(run.path.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            top = path.relative_to(run.path).parts[0]
            files[f"{top}/" if path.parent != run.path else top] += path.stat().st_size
    return {
        **summarize(run),
        "stopped": None if run.stopped is None else {"by": run.stopped.by, "why": run.stopped.sentence},
        "doctor": diagnosis(run),
        "config": run.config,
        **{key: run.info.get(key) for key in ("uptrend", "tasks", "eval", "machine")},
        "notes": [*(run.info.get("notes") or ()), *run.notes],
        "weights": run.info.get("model"),
        "evaluations": [asdict(e) for e in held_out(run)],
        "sets": {label: [asdict(e) for e in found] for label, found in further_sets(run).items()},
        "curves": curves(run),
        "phases": phases(run.metric_lines),
        "checkpoints": [path.name for path in run.checkpoints],
        "files": files,
        "log": str(run.path / LOG) if (run.path / LOG).exists() else None,
    }


def diagnosis(run: Run) -> dict[str, Any]:
    """Return the trend and the causes of a run's report, and the step that dates it."""
    report = latest_report(run)
    causes = [finding for finding in report["findings"] if finding["symptom_of"] is None]
    return {
        "step": report["step"],
        "trend": report["trend"],
        "sentence": report["sentence"],
        "findings": [
            {**{key: cause[key] for key in ("id", "severity", "confidence", "summary")},
             "fix": cause["fix"] and cause["fix"]["sentence"]} for cause in causes
        ],
        "more": f"uptrend doctor {run.path}",
    }  # fmt: skip


def groups_of(run: Run, step: int) -> list[dict[str, Any]]:
    """Return the groups of a step, with the rows of their rollouts by index.

    A group's number is that of its name in our runs, and its place in others.
    """
    rows = sorted(
        run.rollouts(step).to_pylist(), key=lambda row: (str(row["group"]), row["index"] or 0, row["sequence"] or 0)
    )
    groups = []
    for place, (name, own) in enumerate(itertools.groupby(rows, key=lambda row: str(row["group"]))):
        rollouts = {index: list(parts) for index, parts in itertools.groupby(own, key=lambda row: row["index"] or 0)}
        firsts = [parts[0] for parts in rollouts.values()]
        rewards = [first["reward"] for first in firsts if first["reward"] is not None]
        number = name.removeprefix(f"{step:06d}-")
        asked = [message["content"] or "" for message in firsts[0]["messages"] or () if message["role"] == "user"]
        groups.append({
            "step": step, "number": int(number) if number != name and number.isdigit() else place, "group": name,
            "task": firsts[0]["task"], "question": " ".join("".join(asked[:1]).split()), "rewards": rewards,
            "mean": statistics.fmean(rewards) if rewards else None, "dead": len(set(rewards)) == 1,
            "kept": firsts[0]["kept"] is not False, "rollouts": rollouts,
        })  # fmt: skip
    return groups


def find_rollouts(run: Run, named: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Return the groups that STEP or STEP/GROUP names; for STEP/GROUP/INDEX also the rows of that rollout."""
    step, _, rest = named.partition("/")
    if not step.isdigit():
        raise RecordError(f"--rollout {named}: it should be STEP, STEP/GROUP or STEP/GROUP/INDEX, such as 12/3/5.")
    groups = groups_of(run, int(step))
    by_name = {str(group["number"]): group for group in groups} | {group["group"]: group for group in groups}
    # Imported runs name groups freely, also with slashes.
    match = None if rest in by_name else re.fullmatch(r"(.+)/(\d+)", rest)
    name, index = match.groups() if match else (rest, None)
    if rest and name not in by_name:
        numbers = [group["number"] for group in groups] or [0]
        there = nearest(name, by_name) or f" It has {len(groups)}: {min(numbers)} to {max(numbers)}."
        raise RecordError(f"Step {step} of {run.path} has no group {name}.{there}")
    if index is None:
        return [by_name[name]] if rest else groups, None
    rollouts = by_name[name]["rollouts"]
    if int(index) not in rollouts:
        its = f"Its rollouts are {min(rollouts)} to {max(rollouts)}."
        raise RecordError(f"Step {step} of {run.path} has no rollout {index} in group {name}. {its}")
    return [by_name[name]], rollouts[int(index)]


def part_turns(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Part a rollout's messages into the prompt, and turns: the model's message, the replies, and its commands."""
    messages, commands = rows[0]["messages"] or [], rows[0].get("commands") or []
    sampled = [(row["turns"], row["roles"]) for row in rows if row["ids"] is not None]
    turns = {turn for pair in sampled for turn, role in zip(*pair, strict=True) if role == Role.MODEL}
    places = places_said([message["role"] for message in messages], len(turns) if sampled else None)
    ends = [*places, len(messages)]
    return messages[: ends[0]], [
        {
            "message": messages[a], "replies": messages[a + 1 : b],
            # A submission at the end was given by no message, and counts as a turn more.
            "commands": [c for c in commands if min(c["turn"], len(places) - 1) == turn],
        }
        for turn, (a, b) in enumerate(itertools.pairwise(ends))
    ]  # fmt: skip


def summarize_rollout(rows: Sequence[dict[str, Any]], group: int) -> dict[str, Any]:
    """Return a rollout's figures and the text that the model wrote, from the rows of its sequences."""
    first, roles = rows[0], [role for row in rows for role in row["roles"] or ()]
    advantages = [value for row in rows for value in row["advantages"] or [None] * len(row["roles"] or ())]
    known = [a for a, role in zip(advantages, roles, strict=True) if role == Role.MODEL and a is not None]
    said = [f"{m['content'] or ''} {m['calls'] or ''}" for m in first["messages"] or () if m["role"] == "assistant"]
    return {
        "rollout": f"{first['step']}/{group}/{first['index']}",
        **{key: first[key] for key in ("group", "index", "task", "reward", "correct", "ended", "error")},
        "advantage": statistics.fmean(known) if known else None,
        "tokens": roles.count(Role.MODEL),
        "text": " ".join(" ".join(said).split()),
    }


def tokenizer_of(run: Run, below: Path | None = None) -> Any | None:
    """Return the tokenizer of the run's last checkpoint that has one, else of its model on this machine; or None.

    `below` is the folder outside which a model that the config names by its path is not read.
    """
    name = str(flatten(run.config).get("model.name") or "")
    # A known model's folder is outside `below`, and a name that climbs out of the known ones is none of theirs.
    is_plain = not Path(name).is_absolute() and ".." not in Path(name).parts
    known = local_folder(name) if is_plain else None
    places = [*(path / "model" for path in reversed(run.checkpoints)), known]
    if below is None or (Path(name) / "tokenizer.json").resolve().is_relative_to(below):
        places.append(Path(name))
    found = next((place for place in places if place and (place / "tokenizer.json").is_file()), None)
    if found is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    with reading_below(None) if found == known else contextlib.nullcontext():
        return Tokenizer.from_buffer(read_file(found / "tokenizer.json"))


def compare(a: Run, b: Run) -> dict[str, Any]:
    """Describe two runs side by side."""
    curves_a, curves_b = curves(a), curves(b)
    keys = dict.fromkeys([*curves_a, *curves_b])
    return {
        "a": summarize(a),
        "b": summarize(b),
        "difference": {key: list(pair) for key, pair in difference(a.config, b.config).items()},
        "curves": {key: {"a": curves_a.get(key, []), "b": curves_b.get(key, [])} for key in keys},
        "paired": pair_up(a, b),
    }


def pair_up(a: Run, b: Run) -> dict[str, Any] | None:
    """Compare the last evaluations of two runs task by task, `effect` is B less A; None where they share no task."""
    correct_a, correct_b = _correct_tasks(a), _correct_tasks(b)
    answers = Counter((correct_a[task], correct_b[task]) for task in correct_a if task in correct_b)
    if not answers:
        return None
    # scipy only where two runs are compared: `runs list` stays fast
    from uptrend.stats.comparison import mcnemar, paired_interval

    gained, lost = answers[False, True], answers[True, False]
    return {
        "step_a": a.eval_lines[-1]["step"],
        "step_b": b.eval_lines[-1]["step"],
        "tasks": answers.total(),
        "both": answers[True, True],
        "only_a": answers[True, False],
        "only_b": answers[False, True],
        "neither": answers[False, False],
        "effect": (gained - lost) / answers.total(),
        "interval": paired_interval(gained, lost, answers.total()),
        "p": mcnemar(lost, gained),
        "caveat": CAVEAT,
    }


def _correct_tasks(run: Run) -> dict[str, bool]:
    """Return by task if the last greedy answer was correct; one that could not be scored was not."""
    if not run.eval_lines:
        return {}
    correct: dict[str, bool] = {}
    # A task's first row is its greedy answer; sampled attempts for pass@k come after it.
    for row in run.eval_rollouts(run.eval_lines[-1]["step"]).select(["task", "correct"]).to_pylist():
        correct.setdefault(row["task"], bool(row["correct"]))
    return correct
