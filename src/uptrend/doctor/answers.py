"""Rollouts with what they said, what they should have said, and whether that was rewarded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uptrend.doctor.reading import says, says_somehow
from uptrend.doctor.rows import Flags, Ints, Rows


@dataclass(frozen=True)
class Answers:
    """The scored rollouts of one step that said something to a task with a gold answer."""

    rows: Rows
    place_n: Ints
    """Their numbers among all rollouts of the step."""
    said_n: list[str]
    gold_n: list[str]
    task_n: Ints
    right_n: Flags
    """Whether our own reader finds the gold answer."""
    rewarded_n: Flags
    """Whether the run counted it as right."""
    low_n: Flags
    """Whether it earned the least that there is."""

    def whole(self, flags: Flags) -> Flags:
        """From these rollouts to all of the step."""
        spread = np.zeros(len(self.rows), np.bool_)
        spread[self.place_n[flags]] = True
        return spread


def answers_of(r: Rows) -> Answers | None:
    """Read a step; None where there are no texts, no answers, no tasks or no rewards."""
    if r.task_n is None or not r.has("messages", "answer", "reward"):
        return None
    said, gold = r.said_n, r.texts("answer")
    scored = np.isfinite(r.reward_n) & np.array([e is None for e in r.texts("error")], np.bool_)
    place = np.array([n for n in np.flatnonzero(scored) if said[n] is not None and gold[n]], np.int64)
    if not len(place):
        return None
    texts, golds = [said[n] or "" for n in place], [gold[n] or "" for n in place]
    reward, low, high = (r.by_rollout(key)[place] for key in ("reward", "reward_low", "reward_high"))
    low = np.where(np.isfinite(low), low, np.nanmin(reward))
    high = np.where(np.isfinite(high), high, np.nanmax(reward))
    correct = r.by_rollout("correct")[place]
    rewarded = np.where(np.isfinite(correct), correct != 0, reward >= high - 1e-6)
    return Answers(
        rows=r,
        place_n=place,
        said_n=texts,
        gold_n=golds,
        task_n=r.task_n[place],
        right_n=_read(texts, golds),
        rewarded_n=rewarded.astype(np.bool_),
        low_n=(reward <= low + 1e-6) & (high > low),
    )


def somehow_right(a: Answers, golds: Sequence[str], among: Flags) -> Flags:
    """Which of `among` the lenient reader takes for these answers."""
    return np.array([bool(m) and says_somehow(s, g) for m, s, g in zip(among, a.said_n, golds, strict=True)], np.bool_)


def others_golds(a: Answers) -> list[str]:
    """For each rollout the gold answer of another task of its step; its own where there is no other."""
    gold_of = {int(task): gold for task, gold in zip(a.task_n, a.gold_n, strict=True)}
    tasks = sorted(gold_of)
    following = {task: gold_of[tasks[(i + 1) % len(tasks)]] for i, task in enumerate(tasks)}
    return [following[int(task)] for task in a.task_n]


def _read(texts: list[str], golds: list[str]) -> Flags:
    """The strict reader on each pair; groups say the same thing many times."""
    known = {pair: says(*pair) for pair in set(zip(texts, golds, strict=True))}
    return np.array([known[pair] for pair in zip(texts, golds, strict=True)], np.bool_)
