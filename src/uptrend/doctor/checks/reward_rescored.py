"""Whether rewards belong to the rollouts that they are recorded with: scored once more from what was said.

reward.misaligned        what says its own task's answer is not rewarded, and what is rewarded does not say it
reward.wrong-length      right and wrong rollouts of a group all have one reward, or some have none at all
reward.gold-rejected     what says the gold answer, word for word, is not rewarded
reward.nondeterministic  the same tokens on the same task have two rewards
"""

import numpy as np

from uptrend.doctor.answers import Answers, answers_of
from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.reading import answer_of, fold
from uptrend.doctor.rows import Flags, Rows
from uptrend.records import CannotTell, Confidence, Ending, Evidence, Finding, RunView, Severity

IDS = ("reward.misaligned", "reward.wrong-length", "reward.gold-rejected")
UNFINISHED = (Ending.TURN_LIMIT.value, Ending.CONTEXT_FULL.value)
"""Rollouts that ended so had more to say: their last words are no answer yet."""
ENOUGH = 3
"""Rollouts that must show it."""


def check(view: RunView) -> Outcome:
    """The first that fits; two scores for the same tokens are said where nothing else explains them."""
    lacking = cannot_tell(view, (*IDS, "reward.nondeterministic"), "reward", "task")
    if lacking:
        return [*lacking]
    rows = read_rows(view)
    steps = [a for a in (answers_of(r) for r in rows) if a is not None]
    found = _misaligned(view, steps) or _broadcast(view, steps) or _rejected(view, steps) if steps else None
    told: Outcome = [] if steps else [CannotTell(id, "no gold answers or no texts were recorded") for id in IDS]
    if found is not None:
        return [found]
    twice = _twice(view, [r for r in rows if r.has("ids", "reward", "task")])
    return [*told, *([twice] if twice else [])]


def _misaligned(view: RunView, steps: list[Answers]) -> Finding | None:
    """Both ways wrong: right ones rejected, and rewarded ones that say another task's answer."""
    rejected = [a.right_n & ~a.rewarded_n for a in steps]
    strange = [a.rewarded_n & ~a.right_n for a in steps]
    right, rewarded = (sum(int(getattr(a, key).sum()) for a in steps) for key in ("right_n", "rewarded_n"))
    out, odd = (sum(int(flags.sum()) for flags in kind) for kind in (rejected, strange))
    if min(out, odd) < ENOUGH or out < 0.3 * right or odd < 0.3 * rewarded:
        return None
    fits = sum(_says_anothers(a, flags) for a, flags in zip(steps, strange, strict=True)) / odd
    if fits < 0.5 and (_has_turns(view) or _broadcast(view, steps)):  # an answer may be in earlier turns
        return None
    rows = [a.rows for a in steps]
    evidence = [
        Evidence(
            f"{out} of {right} rollouts that say their task's answer are not counted as right",
            out / right, **point(rows, [a.whole(f) for a, f in zip(steps, rejected, strict=True)]),
        ),
        Evidence(
            f"{odd} of {rewarded} that are counted as right say something else; "
            f"{fits:.0%} of these say the answer of another task of the step",
            fits, **point(rows, [a.whole(f) for a, f in zip(steps, strange, strict=True)]),
        ),
    ]  # fmt: skip
    confidence = Confidence.HIGH if fits >= 0.8 else Confidence.MEDIUM
    summary = "Rollouts are scored against the answers of other tasks."
    return finding(view, "reward.misaligned", Severity.CRITICAL, confidence, summary, evidence)


def _has_turns(view: RunView) -> bool:
    turns = view.curve("sampling/turns/mean")[1]
    return len(turns) > 0 and float(turns.mean()) > 1.1


def _says_anothers(a: Answers, flags: Flags) -> int:
    golds = {fold(gold) for gold in a.gold_n}
    return sum(answer_of(a.said_n[n]) in golds for n in np.flatnonzero(flags))


def _broadcast(view: RunView, steps: list[Answers]) -> Finding | None:
    """Groups in which right and wrong answers earn the same, and some of them not the least that there is."""
    flat, raised, mixed, flags = 0, 0, 0, list[Flags]()
    for a in steps:
        reward_n = a.rows.reward_n[a.place_n]
        same_n = np.zeros(len(a.place_n), np.bool_)
        for task in np.unique(a.task_n[a.right_n]):
            of_n = a.task_n == task
            if a.right_n[of_n].all():
                continue
            mixed += 1
            if np.ptp(reward_n[of_n]) == 0:
                flat, raised = flat + 1, raised + (not a.low_n[of_n].any())
                same_n |= of_n
        flags.append(a.whole(same_n))
    if raised < ENOUGH or flat < 0.9 * mixed or _is_one_value(steps):
        return None
    text = f"in {flat} of {mixed} groups with right and wrong answers all rollouts have the same reward"
    evidence = [Evidence(text, flat / mixed, "reward/group_std/mean", **point([a.rows for a in steps], flags))]
    summary = "One reward is given to all rollouts of a group or step, whatever each of them said."
    return finding(view, "reward.wrong-length", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _is_one_value(steps: list[Answers]) -> bool:
    """Whether all that was ever given is one reward: a scorer that always says the same, not one that says it once."""
    return bool(np.ptp(np.concatenate([a.rows.reward_n for a in steps])) == 0)


def _rejected(view: RunView, steps: list[Answers]) -> Finding | None:
    said = [a.right_n & ~np.isin(a.rows.ended_n[a.place_n], UNFINISHED) for a in steps]
    rejected = [flags & ~a.rewarded_n for flags, a in zip(said, steps, strict=True)]
    right, out = (sum(int(flags.sum()) for flags in kind) for kind in (said, rejected))
    tasks = sum(len(np.unique(a.task_n[flags])) for a, flags in zip(steps, rejected, strict=True))
    if out < ENOUGH or tasks < 2 or out < 0.5 * right:
        return None
    at_low = sum(int((flags & a.low_n).sum()) for a, flags in zip(steps, rejected, strict=True))
    text = f"{out} of {right} rollouts that say the gold answer are not counted as right; {at_low} earned the least"
    where = point([a.rows for a in steps], [a.whole(f) for a, f in zip(steps, rejected, strict=True)])
    summary = "The reward rejects gold answers: what the model said was right and it was told that it was wrong."
    evidence = [Evidence(text, out / right, **where)]
    if at_low < 0.5 * out:  # a task may ask for more than its last answer, and pay for what there is of it
        return finding(view, "reward.gold-rejected", Severity.NOTE, Confidence.LOW, summary, evidence)
    return finding(view, "reward.gold-rejected", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _twice(view: RunView, rows: list[Rows]) -> Finding | None:
    """The same tokens, two rewards."""
    counts = [_conflicts(r) for r in rows]
    repeated, bad = sum(c[0] for c in counts), sum(c[1] for c in counts)
    if bad < 2 or bad < 0.01 * repeated:
        return None
    text = f"{bad} of {repeated} rollouts that say exactly what another of their group says have another reward"
    evidence = [Evidence(text, bad / repeated, **point(rows, [c[2] for c in counts]))]
    summary = "The same rollout is given different rewards."
    severity = Severity.CRITICAL if bad >= 0.2 * repeated else Severity.WARNING
    return finding(view, "reward.nondeterministic", severity, Confidence.HIGH, summary, evidence)


def _conflicts(r: Rows) -> tuple[int, int, Flags]:
    """Rollouts with the tokens of an earlier one of the same task; those with another reward; and which."""
    ids = r.tokens("ids")
    flags = np.zeros(len(r), np.bool_)
    if ids is None or r.task_n is None:
        return 0, 0, flags
    golds = r.texts("answer")  # one question with two golds is another fault
    first: dict[tuple[int, str | None, bytes, str], float] = {}
    repeated = 0
    ends = np.append(np.flatnonzero(np.diff(r.rollout_t)) + 1, len(ids))
    starts = np.append(0, ends[:-1])
    for start, end in zip(starts, ends, strict=True):
        n = int(r.rollout_t[start]) if end > start else -1
        if n < 0 or not np.isfinite(r.reward_n[n]):
            continue
        key = (int(r.task_n[n]), golds[n], ids[start:end].tobytes(), str(r.ended_n[n]))
        repeated += key in first
        flags[n] = abs(first.setdefault(key, r.reward_n[n]) - r.reward_n[n]) > 1e-6
    return repeated, int(flags.sum()), flags
