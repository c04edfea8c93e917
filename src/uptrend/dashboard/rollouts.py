"""Rollouts of a run: lists by step, task and text, and one rollout with its conversation and its
tokens.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from uptrend.dashboard.curves import steps_of
from uptrend.dashboard.filters import MAX_QUOTED, BadRequest
from uptrend.dashboard.library import Library, LibraryEntry
from uptrend.records import Ending, RecordError
from uptrend.records.directory import eval_path
from uptrend.records.run import step_folders

# Time that one request may spend on reading steps; the next request goes on from there. Chosen by
# hand, so that a page has an answer within about a second.
INDEXING_BUDGET_S = 0.6
SEARCH_BUDGET_S = 2 * INDEXING_BUDGET_S
# Lines that a search takes from the index at a time.
LINES_PER_QUERY = 500
# Characters of a message, and tokens of a sequence, that a page gets unless it asks for more.
DEFAULT_MAX_CHARACTERS = 20_000
DEFAULT_MAX_TOKENS = 4_000
# Columns of the index by the name of an order; `group` and `index` are words of SQL, so in quotes.
COLUMNS_BY_ORDER = {
    "step": ("step", '"group"', '"index"'),
    "reward": ("reward",),
    "advantage": ("advantage",),
    "tokens": ("tokens",),
    "seconds": ("seconds",),
}


@dataclass(frozen=True)
class RolloutSet:
    """Rollouts of a run: those of training, or of its evaluations."""

    entry: LibraryEntry
    library: Library
    heldout: bool = False
    label: str = ""
    """Name of a further held-out set."""

    @property
    def key(self) -> str:
        """Name in the index."""
        return f"{self.entry.source.key}\0{self.label}"

    def steps(self) -> dict[int, int]:
        """Return the steps that have rollouts, each with the time of its file."""
        source = self.entry.source
        if source.kind == "log":
            if self.heldout:
                return {}
            return dict.fromkeys(self.library.log_facts(self.entry)["rollout_steps"], 0)

        folder = source.check(source.path / ("evals" if self.heldout else "rollouts"))
        # Rollouts count once their line is there, which is written after them.
        recorded_steps = self._evaluated_steps() if self.heldout else self._trained_steps()
        times_by_step: dict[int, int] = {}
        with contextlib.suppress(OSError):
            for item in os.scandir(folder):
                stem, _, label = item.name.removesuffix(".parquet").partition("-")
                if stem.isdecimal() and label == self.label and int(stem) in recorded_steps:
                    with contextlib.suppress(OSError):  # a link to nothing
                        times_by_step[int(stem)] = item.stat().st_mtime_ns
        return dict(sorted(times_by_step.items()))

    def _trained_steps(self) -> set[int]:
        return set(steps_of(self.library.table(self.entry)).tolist())

    def _evaluated_steps(self) -> set[int]:
        return {line["step"] for line in self.library.facts(self.entry)["evals"]}

    def read(self, function: str, step: int, *arguments: Any) -> Any:
        """Run a function of the reader process on the rollouts of a step; RecordError if there are
        none.
        """
        path = str(self.entry.source.path)
        return self.library.page_reader.call(function, path, self.locate(step), *arguments)

    def locate(self, step: int) -> dict[str, Any]:
        """Return the location of a step's rollouts, for the reader process; RecordError if there
        are none.
        """
        source = self.entry.source
        evaluation = "the evaluation after " if self.heldout else ""
        missing = f"{source.id} has no rollouts of {evaluation}step {step}."
        if source.kind == "log":
            if step not in self.steps():
                raise RecordError(missing)
            source.check_all()
            return {"step": step, "part": self.entry.part, "stamp": self.entry.stamp}

        if self.heldout:
            paths = [eval_path(source.path, step, self.label)]
        else:
            paths = sorted((source.path / "rollouts" / f"{step:06d}").glob("part-*.parquet"))
        files = [str(source.check(path)) for path in paths if path.is_file()]
        if not files:
            raise RecordError(missing)
        return {"step": step, "files": files}


def _update_index(rollout_set: RolloutSet, step: int | None = None) -> tuple[int, int]:
    """Index steps that are new or changed until the time is up, or one step only; return the number
    of steps that are up to date, and of all.
    """
    index = rollout_set.library.index
    name = f"rollouts-{int(rollout_set.heldout)}"
    deadline = time.monotonic() + INDEXING_BUDGET_S
    # Time of each step's file when it was indexed; JSON has texts as keys.
    indexed: dict[str, int] = index.get(rollout_set.key, name) or {}
    times_by_step = rollout_set.steps()

    is_changed = False
    for number in times_by_step if step is None else [step]:
        if number not in times_by_step or indexed.get(str(number)) == times_by_step[number]:
            continue
        try:
            lines = rollout_set.read("rollout_lines", number, rollout_set.heldout)
        except Exception:
            lines = []  # of a damaged file; a request for its rollouts gets the error
        index.put_rollouts(rollout_set.key, rollout_set.heldout, number, lines)
        indexed[str(number)] = times_by_step[number]
        is_changed = True
        if time.monotonic() > deadline:
            break

    for removed in [key for key in indexed if int(key) not in times_by_step]:
        index.put_rollouts(rollout_set.key, rollout_set.heldout, int(removed), [])
        del indexed[removed]
        is_changed = True

    if is_changed:
        index.put(rollout_set.key, name, None, indexed)
    n_indexed = sum(indexed[key] == times_by_step[int(key)] for key in indexed)
    return n_indexed, len(times_by_step)


def find_rollouts(
    rollout_set: RolloutSet,
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
    """Return lines of rollouts that meet all conditions, sorted, one page at a time.

    A long run is indexed over several requests: `indexed` counts the steps that the answer covers.
    With a text, steps are read until the page is full or the time is up, and `next` is the offset
    to go on from.
    """
    index = rollout_set.library.index
    order = sort.removeprefix("-")
    is_descending = sort.startswith("-")
    if order not in COLUMNS_BY_ORDER:
        raise BadRequest(
            f"sort={sort[:MAX_QUOTED]} is no order of rollouts: {', '.join(COLUMNS_BY_ORDER)}, `-`"
            " for the largest first."
        )
    if step is not None and step not in rollout_set.steps():
        rollout_set.locate(step)  # raises RecordError
    n_indexed, n_steps = _update_index(rollout_set, step)

    values_by_condition = {
        "step=?": step,
        '"group"=?': group or None,
        "task=?": task or None,
        "ended=?": ended or None,
        "correct=?": correct,
        "reward>=?": low,
        "reward<=?": high,
        "instr(',' || tools || ',', ?)": f",{tool}," if tool else None,
    }
    conditions = ["heldout=?"]
    values: list[Any] = [rollout_set.heldout]
    for condition, value in values_by_condition.items():
        if value is not None:
            conditions.append(condition)
            values.append(value)
    where = " and ".join(conditions)

    # Other trainers have endings of their own, which are valid if a rollout has them.
    is_foreign = ended and ended not in list(Ending)
    if is_foreign and not index.count_rollouts(rollout_set.key, "ended=?", [ended]):
        raise BadRequest(f"ended={ended[:MAX_QUOTED]} is no ending: {', '.join(Ending)}.")

    answer: dict[str, Any] = {"indexed": n_indexed, "steps": n_steps, "next": None}
    if text:
        # Step by step, whatever the order, so that each step's file is read once.
        answer |= _search(rollout_set, where, values, text.lower(), limit, offset)
        if order != "step":
            sign = -1 if is_descending else 1
            answer["rollouts"].sort(
                key=lambda line: (line[order] is None, (line[order] or 0) * sign)
            )
        return answer

    answer["total"] = index.count_rollouts(rollout_set.key, where, values)
    order_by = _order_by(order, is_descending)
    page = f"{order_by} limit {int(limit)} offset {int(offset)}"
    answer["rollouts"] = index.rollouts(rollout_set.key, where, values, page)
    return answer


def _order_by(order: str, is_descending: bool = False) -> str:
    """Return an order in SQL; rollouts without a value come last."""
    suffix = " desc" if is_descending else ""
    terms = [f"{column}{suffix}" for column in COLUMNS_BY_ORDER[order]]
    if order != "step":  # every rollout has one
        terms.insert(0, f"{order} is null")
    return f"order by {', '.join(terms)}"


def _search(
    rollout_set: RolloutSet, where: str, values: Sequence[Any], text: str, limit: int, offset: int
) -> dict[str, Any]:
    """Read messages of the rollouts that meet the conditions, by step, until the page is full or
    the time is up.
    """
    deadline = time.monotonic() + SEARCH_BUDGET_S
    index = rollout_set.library.index
    matches: list[dict[str, Any]] = []
    step = None
    texts_by_name: dict[tuple[str, int, int], str] = {}  # matches of that step
    n_read = offset
    while True:
        rest = f"{_order_by('step')} limit {LINES_PER_QUERY} offset {n_read}"
        lines = index.rollouts(rollout_set.key, where, values, rest)
        for line in lines:
            n_read += 1
            if line["step"] != step:
                step = line["step"]
                texts_by_name = {}
                for group, number, nth, surroundings in rollout_set.read("search_step", step, text):
                    texts_by_name[group, number, nth] = surroundings
            name = (line["group"], line["index"], line["nth"])
            if name in texts_by_name:
                line["text"] = texts_by_name[name]
                matches.append(line)
            if len(matches) >= limit or time.monotonic() > deadline:
                return {"total": None, "rollouts": matches, "next": n_read}
        if len(lines) < LINES_PER_QUERY:
            return {"total": None, "rollouts": matches, "next": None}


def show_rollout(
    rollout_set: RolloutSet,
    step: int,
    group: str,
    index: int,
    nth: int = 0,
    characters: int = DEFAULT_MAX_CHARACTERS,
    tokens: int = DEFAULT_MAX_TOKENS,
) -> dict[str, Any]:
    """Return one rollout: messages by turn, reward by part, commands, and its tokens with all their
    figures.
    """
    source = rollout_set.entry.source
    tokenizer_root = None
    if source.kind == "run":
        for folder in step_folders(source.path / "checkpoints").values():
            source.check(folder / "model" / "tokenizer.json")
        tokenizer_root = str(source.root)
    rollout: dict[str, Any] = rollout_set.read(
        "show_rollout", step, group, index, nth, characters, tokens, tokenizer_root
    )
    return rollout
