"""Rollouts of a run as plain objects: the same for the terminal, for --json and for the dashboard."""

import contextlib
import itertools
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uptrend.config.load import nearest
from uptrend.config.tables import flatten
from uptrend.policy.known import local_folder
from uptrend.records import RecordError, Role, Run
from uptrend.records.files import read_file, reading_below
from uptrend.records.rollout import places_said


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
