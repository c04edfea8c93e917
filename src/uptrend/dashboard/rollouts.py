"""Rollouts of a run: lists by step, task and text, and one rollout with its conversation and its
tokens.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from uptrend.dashboard.filters import BadRequest
from uptrend.dashboard.library import Library, LibraryEntry
from uptrend.records import Ending, RecordError
from uptrend.records.directory import eval_path
from uptrend.records.run import step_folders

# Seconds that one request may spend on reading steps; the next goes on from there.
BUDGET = 0.6
# Characters of a message, and tokens of a sequence, that a page gets unless it asks for more.
CHARACTERS = 20_000
TOKENS = 4_000


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
            return (
                dict.fromkeys(self.library.log(self.entry)["rollout_steps"], 0)
                if not self.held
                else {}
            )
        folder = self.entry.source.check(
            self.entry.source.path / ("evals" if self.held else "rollouts")
        )
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
        return {line["step"] for line in self.library.facts(self.entry)["evals"]}

    def ask(self, work: str, step: int, *arguments: Any) -> Any:
        """Have the reader process work on the rollouts of a step; RecordError where there are
        none.
        """
        path = str(self.entry.source.path)
        return self.library.pages.call(work, path, self.locate(step), *arguments)

    def locate(self, step: int) -> dict[str, Any]:
        """Return where the rollouts of a step are, for the reader process; RecordError where there
        are none.
        """
        source = self.entry.source
        missing = (
            f"{source.id} has no rollouts of {'the evaluation after ' * self.held}step {step}."
        )
        if source.kind == "log":
            if step not in self.steps():
                raise RecordError(missing)
            source.check_all()
            return {"step": step, "part": self.entry.part, "stamp": self.entry.stamp}
        if self.held:
            files = [eval_path(source.path, step, self.label)]
        else:
            files = sorted((source.path / "rollouts" / f"{step:06d}").glob("part-*.parquet"))
        files = [source.check(file) for file in files if file.is_file()]
        if not files:
            raise RecordError(missing)
        return {"step": step, "files": [str(file) for file in files]}


def _bring_up_to_date(
    place: RolloutPlace, only: int | None = None, budget: float = BUDGET
) -> tuple[int, int]:
    """Index steps that are new or changed until the time is up; return how many are done, and how
    many there are.
    """
    index = place.library.index
    entry = f"rollouts-{int(place.held)}"
    begun = time.monotonic()
    known: dict[str, int] = index.get(place.key, entry) or {}
    steps = place.steps()
    wanted = [only] if only is not None else list(steps)
    changed = False
    for step in wanted:
        if step not in steps or known.get(str(step)) == steps[step]:
            continue
        try:
            rows = place.ask("rollout_lines", step, place.held)
        except Exception:
            rows = []  # a damaged file has no lines; asked for by itself it says so
        index.put_rollouts(place.key, place.held, step, rows)
        known[str(step)] = steps[step]
        changed = True
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
    "step": 'step, "group", "index"',
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

    A long run is indexed over several requests: `indexed` counts the steps that the answer knows.
    With a text, steps are read until the page is full or the time is up, and `next` is where to go
    on.
    """
    order_name = sort.removeprefix("-")
    falls = sort.startswith("-")
    if order_name not in ORDERS:
        raise BadRequest(
            f"sort={sort[:80]} is no order of rollouts: {', '.join(ORDERS)}, `-` for the largest"
            " first."
        )
    if step is not None and step not in place.steps():
        place.locate(step)
    done, steps = _bring_up_to_date(place, step)
    where = ["held=?"]
    values = list[Any]([place.held])
    for condition, value in (
        ("step=?", step),
        ('"group"=?', group or None),
        ("task=?", task or None),
        ("ended=?", ended or None),
        ("correct=?", correct),
        ("reward>=?", low),
        ("reward<=?", high),
        ("instr(',' || tools || ',', ?)", f",{tool}," if tool else None),
    ):
        if value is not None:
            where.append(condition)
            values.append(value)
    joined = " and ".join(where)
    order = ORDERS[order_name]
    order = order.replace(",", " desc,") + " desc" if falls else order
    by = f"order by {'' if order_name == 'step' else f'{order_name} is null, '}{order}"
    if (
        ended
        and ended not in list(Ending)
        and not place.library.index.count_rollouts(place.key, "ended=?", [ended])
    ):
        raise BadRequest(f"ended={ended[:80]} is no ending: {', '.join(Ending)}.")
    told = {"indexed": done, "steps": steps, "next": None}
    if text:  # step by step, whatever the order: each step's file is then read once
        found = _search(
            place, joined, values, f"order by {ORDERS['step']}", text.lower(), limit, offset
        )
        if order_name != "step":
            sign = -1 if falls else 1
            found["rollouts"].sort(
                key=lambda row: (row[order_name] is None, (row[order_name] or 0) * sign)
            )
        return {**told, **found}
    total = place.library.index.count_rollouts(place.key, joined, values)
    rows = place.library.index.rollouts(
        place.key, joined, values, f"{by} limit {int(limit)} offset {int(offset)}"
    )
    return {**told, "total": total, "rollouts": rows}


def _search(
    place: RolloutPlace,
    where: str,
    values: Sequence[Any],
    order: str,
    text: str,
    limit: int,
    offset: int,
) -> dict[str, Any]:
    """Read messages of candidates in order until the page is full or the time is up."""
    begun = time.monotonic()
    found = list[dict[str, Any]]()
    at = offset
    places = lru_cache(2)(
        lambda step: {tuple(name): said for *name, said in place.ask("search_step", step, text)}
    )
    while True:
        rows = place.library.index.rollouts(
            place.key, where, values, f"{order} limit 500 offset {at}"
        )
        for row in rows:
            at += 1
            said = places(row["step"]).get((row["group"], row["index"], row["nth"]))
            if said is not None:
                row["text"] = said
                found.append(row)
            if len(found) >= limit or time.monotonic() - begun > 2 * BUDGET:
                return {"total": None, "rollouts": found, "next": at}
        if len(rows) < 500:
            return {"total": None, "rollouts": found, "next": None}


def show(
    place: RolloutPlace,
    step: int,
    group: str,
    index: int,
    nth: int = 0,
    characters: int = CHARACTERS,
    tokens: int = TOKENS,
) -> dict[str, Any]:
    """Return one rollout: messages by turn, reward by part, commands, and its tokens with all their
    figures.
    """
    source = place.entry.source
    root = None
    if source.kind == "run":
        for folder in step_folders(source.path / "checkpoints").values():
            source.check(folder / "model" / "tokenizer.json")
        root = str(source.root)
    found: dict[str, Any] = place.ask(
        "show_rollout", step, group, index, nth, characters, tokens, root
    )
    return found
