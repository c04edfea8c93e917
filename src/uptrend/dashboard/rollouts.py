"""Rollouts of a run: lists by step, task and text, and one rollout with its conversation and its tokens."""

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from uptrend.dashboard.library import Library, LibraryEntry
from uptrend.records import RecordError, Role, Run
from uptrend.records.directory import eval_path
from uptrend.records.run import read_parquet
from uptrend.records.schema import ROLLOUTS, TOKEN_COLUMNS
from uptrend.runner.summary import part_turns, tokenizer_of

# Seconds that one request may spend on reading steps; the next goes on from there.
BUDGET = 0.6
LINE_COLUMNS = [
    "step", "group", "index", "sequence", "task", "family", "reward", "correct", "ended", "error", "seconds", "kept",
    "messages", "roles", "advantages",
]  # fmt: skip
QUESTION, TEXT = 160, 240
# Characters of a message, and tokens of a sequence, that a page gets unless it asks for more.
CHARACTERS, TOKENS = 20_000, 4_000
SHOWN = ("ids", "turns", "roles", "versions", "sampler", "weights", "attended", "advantages", "learner", "reference")


@dataclass(frozen=True)
class RolloutPlace:
    """Rollouts of a run: those of training, or of its evaluations."""

    entry: LibraryEntry
    library: Library
    held: bool = False
    label: str = ""
    """A further held-out set."""

    @property
    def key(self) -> str:
        return f"{self.entry.source.key}\0{self.label}"

    def steps(self) -> dict[int, int]:
        """Return the steps that have rollouts, each with the time of its file."""
        if self.entry.source.kind == "log":
            return dict.fromkeys(self.library.log(self.entry)["rollout_steps"], 0) if not self.held else {}
        folder = self.entry.source.check(self.entry.source.path / ("evals" if self.held else "rollouts"))
        # Rollouts count with their line, which is written after them.
        counted = self._evaluated() if self.held else self._trained()
        found = {}
        with contextlib.suppress(OSError):
            for item in os.scandir(folder):
                stem, _, label = item.name.removesuffix(".parquet").partition("-")
                if stem.isdecimal() and label == self.label and int(stem) in counted:
                    with contextlib.suppress(OSError):  # a link to nothing
                        found[int(stem)] = item.stat().st_mtime_ns
        return dict(sorted(found.items()))

    def _trained(self) -> set[int]:
        table = self.library.table(self.entry)
        return set(table["step"].to_pylist()) if len(table) else set()

    def _evaluated(self) -> set[int]:
        return {line["step"] for line in Run(self.entry.source.path).eval_lines}

    def read(self, step: int, columns: list[str] | None = None) -> pa.Table:
        """Return the rollouts of a step, or some of their columns; RecordError where there are none."""
        source = self.entry.source
        if source.kind == "log":
            table = self.library.view(self.entry).read_rollouts(step)
            table = pa.concat_tables([ROLLOUTS.empty_table(), table], promote_options="permissive")
            return table if columns is None else table.select(columns)
        if self.held:
            files = [eval_path(source.path, step, self.label)]
        else:
            files = sorted((source.path / "rollouts" / f"{step:06d}").glob("part-*.parquet"))
        files = [file for file in files if file.is_file()]
        if not files:
            raise RecordError(f"{source.id} has no rollouts of {'the evaluation after ' * self.held}step {step}.")
        try:
            return read_parquet([source.check(file) for file in files], columns)
        except (pa.ArrowException, ValueError) as error:  # of other columns than ours
            raise RecordError(f"{files[0]} is damaged: {error}") from None


def _ranges(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the values of a list column in one row, and where each list begins; null lists are empty."""
    lists = column.combine_chunks()
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lists.flatten().to_numpy(zero_copy_only=False), np.concatenate([[0], np.cumsum(sizes)])


def lines_of(table: pa.Table, step: int, held: bool) -> Iterator[dict[str, Any]]:
    """Yield one line per rollout of a table that has LINE_COLUMNS."""
    roles, starts = _ranges(table["roles"])
    advantages, offsets = _ranges(table["advantages"])
    rows = table.drop_columns(["roles", "advantages"]).to_pylist()
    firsts = [at for at, row in enumerate(rows) if not row["sequence"]]
    seen: Counter[tuple[str, int]] = Counter()
    for first, end in zip(firsts, [*firsts[1:], len(rows)], strict=True):
        row, messages = rows[first], rows[first]["messages"] or []
        is_model = roles[starts[first] : starts[end]] == Role.MODEL
        known = advantages[offsets[first] : offsets[end]].astype(float)
        mean = float(np.nanmean(known[is_model])) if len(known) == len(is_model) and is_model.any() else None
        said = [message for message in messages if message["role"] == "assistant"]
        name = str(row["group"] or ""), int(row["index"] or 0)
        seen[name] += 1
        yield {
            "step": step, "held": held, "grp": name[0], "idx": name[1], "nth": seen[name] - 1,
            **{key: row[key] for key in ("task", "family", "reward", "correct", "ended", "error", "kept", "seconds")},
            "tokens": int(is_model.sum()), "turns": len(said), "advantage": None if mean != mean else mean,
            "tools": ",".join(sorted({call for message in said for call in _tools(message)})),
            "question": _first(messages, "user", QUESTION), "text": _first(said[::-1], "assistant", TEXT),
        }  # fmt: skip


def _tools(message: Mapping[str, Any]) -> list[str]:
    try:
        names = [str(call.get("name")) for call in json.loads(message["calls"] or "[]")]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []
    return [name.encode("utf-8", "replace").decode() for name in names]  # SQLite keeps no half of a surrogate pair


def _first(messages: Sequence[Mapping[str, Any]], role: str, most: int) -> str:
    for message in messages:
        text = f"{message['content'] or ''} {message['calls'] or ''}".strip()
        if message["role"] == role and text:
            return " ".join(text[: 4 * most].split())[:most]
    return ""


def _bring_up_to_date(place: RolloutPlace, only: int | None = None, budget: float = BUDGET) -> tuple[int, int]:
    """Index steps that are new or changed until the time is up; return how many are done, and how many there are."""
    index, entry, begun = place.library.index, f"rollouts-{int(place.held)}", time.monotonic()
    known: dict[str, int] = index.get(place.key, entry) or {}
    steps = place.steps()
    wanted = [only] if only is not None else list(steps)
    changed = False
    for step in wanted:
        if step not in steps or known.get(str(step)) == steps[step]:
            continue
        try:
            rows = list(lines_of(place.read(step, LINE_COLUMNS), step, place.held))
        except Exception:
            rows = []  # a damaged file has no lines; asked for by itself it says so
        index.put_rollouts(place.key, place.held, step, rows)
        known[str(step)], changed = steps[step], True
        if time.monotonic() - begun > budget:
            break
    if gone := [name for name in known if int(name) not in steps]:
        for name in gone:
            index.put_rollouts(place.key, place.held, int(name), [])
            del known[name]
    if changed or gone:
        index.put(place.key, entry, None, known)
    return sum(known.get(str(step)) == moment for step, moment in steps.items()), len(steps)


ORDERS = {
    "step": "step, grp, idx",
    "reward": "reward",
    "advantage": "advantage",
    "tokens": "tokens",
    "seconds": "seconds",
}


def find(
    place: RolloutPlace,
    step: int | None = None,
    group: str = "",
    task: str = "",
    ended: str = "",
    tool: str = "",
    correct: bool | None = None,
    low: float | None = None,
    high: float | None = None,
    text: str = "",
    sort: str = "step",
    limit: int = 100,
    offset: int = 0,
) -> dict[str, Any]:
    """Return lines of rollouts that meet all conditions, in an order, a page at a time.

    A long run is indexed over several requests: `indexed` counts the steps that the answer knows. With a text, steps
    are read until the page is full or the time is up, and `next` is where to go on.
    """
    if step is not None and step not in place.steps():
        place.read(step, ["step"])  # says that there are none
    done, steps = _bring_up_to_date(place, step)
    where, values = ["held=?"], list[Any]([place.held])
    for condition, value in (
        ("step=?", step), ("grp=?", group or None), ("task=?", task or None), ("ended=?", ended or None),
        ("correct=?", correct), ("reward>=?", low), ("reward<=?", high),
        ("instr(',' || tools || ',', ?)", f",{tool}," if tool else None),
    ):  # fmt: skip
        if value is not None:
            where.append(condition)
            values.append(value)
    joined, falls = " and ".join(where), sort.startswith("-")
    order = ORDERS.get(sort.removeprefix("-"), ORDERS["step"])
    order = order.replace(",", " desc,") + " desc" if falls else order
    by = f"order by {'' if sort.endswith('step') else f'{order.split()[0]} is null, '}{order}"
    told = {"indexed": done, "steps": steps, "next": None}
    if text:  # step by step, whatever the order: each step's file is then read once
        found = _search(place, joined, values, f"order by {ORDERS['step']}", text.lower(), limit, offset)
        key = sort.removeprefix("-")
        if key in ORDERS and key != "step":
            found["rollouts"].sort(key=lambda row: (row[key] is None, (row[key] or 0) * (-1 if falls else 1)))
        return {**told, **found}
    total = place.library.index.count_rollouts(place.key, joined, values)
    rows = place.library.index.rollouts(place.key, joined, values, f"{by} limit {int(limit)} offset {int(offset)}")
    return {**told, "total": total, "rollouts": rows}


def _search(
    place: RolloutPlace, where: str, values: Sequence[Any], order: str, text: str, limit: int, offset: int
) -> dict[str, Any]:
    """Read messages of candidates in order until the page is full or the time is up."""
    begun, found, at = time.monotonic(), list[dict[str, Any]](), offset
    texts = lru_cache(2)(lambda step: _texts(place, step))
    while True:
        rows = place.library.index.rollouts(place.key, where, values, f"{order} limit 500 offset {at}")
        for row in rows:
            at += 1
            whole = texts(row["step"]).get((row["grp"], row["idx"], row["nth"]), "")
            place_found = whole.lower().find(text)
            if place_found >= 0:
                begin = max(0, place_found - 60)
                row["text"] = ("…" if begin else "") + " ".join(whole[begin : begin + TEXT].split())
                found.append(row)
            if len(found) >= limit or time.monotonic() - begun > 2 * BUDGET:
                return {"total": None, "rollouts": found, "next": at}
        if len(rows) < 500:
            return {"total": None, "rollouts": found, "next": None}


def _texts(place: RolloutPlace, step: int) -> dict[tuple[str, int, int], str]:
    """Return all that was said in each rollout of a step."""
    seen: Counter[tuple[str, int]] = Counter()
    found = {}
    for row in place.read(step, ["group", "index", "sequence", "messages"]).to_pylist():
        if row["sequence"]:
            continue
        name = str(row["group"] or ""), int(row["index"] or 0)
        said = (f"{m['content'] or ''} {m['calls'] or ''}" for m in row["messages"] or ())
        found[(*name, seen[name])] = "\n".join(said)
        seen[name] += 1
    return found


def show(
    place: RolloutPlace,
    step: int,
    group: str,
    index: int,
    nth: int = 0,
    characters: int = CHARACTERS,
    tokens: int = TOKENS,
) -> dict[str, Any]:
    """Return one rollout: messages by turn, reward by part, commands, and its tokens with all their figures."""
    table = place.read(step)
    chosen = pc.and_(pc.equal(table["group"], group), pc.equal(pc.fill_null(table["index"], 0), index))
    rows = table.filter(chosen)
    if not len(rows):
        raise RecordError(f"Step {step} of {place.entry.source.id} has no rollout {index} in group {group}.")
    starts = [at for at, number in enumerate(rows["sequence"].to_pylist()) if not number]
    if not 0 <= nth < len(starts):
        raise RecordError(f"Step {step} of {place.entry.source.id} has no rollout {group}/{index} number {nth}.")
    rows = rows.slice(starts[nth], (starts[nth + 1] if nth + 1 < len(starts) else len(rows)) - starts[nth])
    made = rows.to_pylist()
    first, (prompt, turns) = made[0], part_turns(made)

    def cut(message: Mapping[str, Any]) -> dict[str, Any]:
        content = message["content"] or ""
        return {
            "role": message["role"], "content": content[:characters], "length": len(content),
            "calls": _calls(message["calls"]), "problem": message["problem"],
        }  # fmt: skip

    pieces = _pieces_of(place)
    facts = [name for name in ROLLOUTS.names if name not in TOKEN_COLUMNS and name not in ("messages", "commands")]
    return {
        **{name: first[name] for name in facts},
        "prompt": [cut(message) for message in prompt],
        "turns": [
            {
                "message": cut(turn["message"]), "replies": [cut(reply) for reply in turn["replies"]],
                "commands": [
                    {**c, "command": c["command"][:characters], "said": (c["said"] or "")[:characters]}
                    for c in turn["commands"]
                ],
            }
            for turn in turns
        ],
        "sequences": [_sequence(row, pieces, tokens) for row in made if row["ids"] is not None],
        "has_text": pieces is not None,
    }  # fmt: skip


def _calls(told: str | None) -> Any:
    try:
        return json.loads(told) if told else []
    except (ValueError, RecursionError):
        return []


def _sequence(row: Mapping[str, Any], pieces: Callable[[Sequence[int]], list[str]] | None, most: int) -> dict[str, Any]:
    """Return a sequence's tokens, and counts by role of those that were trained and that attention could not see."""
    roles, weights, seen = row["roles"] or [], row["weights"] or [], row["attended"] or []
    counts = [
        {
            "role": role.name.lower(), "tokens": roles.count(role),
            "trained": sum(w != 0 for w, r in zip(weights, roles, strict=False) if r == role) if weights else None,
            "hidden": sum(not s for s, r in zip(seen, roles, strict=False) if r == role) if seen else None,
        }
        for role in Role
        if role in roles
    ]  # fmt: skip
    columns = {name: (row[name] or [])[:most] for name in SHOWN}
    texts = pieces(columns["ids"]) if pieces else None
    return {"length": len(row["ids"]), "counts": counts, "texts": texts, **columns}


def _pieces_of(place: RolloutPlace) -> Callable[[Sequence[int]], list[str]] | None:
    """Return a function from token ids to their texts; None where there is no tokenizer."""
    source = place.entry.source
    if source.kind != "run":
        return None
    run = Run(source.path)
    for folder in run.checkpoints:
        source.check(folder / "model" / "tokenizer.json")
    tokenizer = _tokenizer(source.path, source.root, tuple(run.checkpoints))
    return None if tokenizer is None else lambda ids: pieces_by(tokenizer, ids)


@lru_cache(4)
def _tokenizer(path: Path, root: Path, checkpoints: tuple[Path, ...]) -> Any:
    del checkpoints  # a new one may be the first to have a tokenizer
    try:
        return tokenizer_of(Run(path), below=root)
    except Exception:  # the file of a foreign tokenizer may hold anything
        return None


def pieces_by(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text of each token; of one character in several tokens, the last has it."""
    texts: list[str] = []
    waiting: list[int] = []
    for id in ids:
        waiting.append(id)
        text = str(tokenizer.decode(waiting, skip_special_tokens=False))
        if text.endswith("\ufffd") and len(waiting) < 4:
            texts.append("")
            continue
        name = tokenizer.id_to_token(id) or ""
        texts.append(f" {text}" if name.startswith("▁") and not text.startswith(" ") else text)
        waiting = []
    return texts
