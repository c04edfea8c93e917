"""Rewards that are there and should not be, and rewards that should be there and are not.

reward.error-scored    something failed, and the rollout has a reward all the same
reward.wrong-length    some rollouts of a step have no reward, and nothing failed
reward.never-computed  nothing is scored, or what would give a reward hardly ever happens
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Flags, Rows
from uptrend.records import CannotTell, Confidence, Ending, Evidence, Finding, RunView, Severity, boundary_of

IDS = ("reward.error-scored", "reward.never-computed")
UNFINISHED = (Ending.TURN_LIMIT.value, Ending.CONTEXT_FULL.value, Ending.LENGTH.value)

ENOUGH = 32
"""Rollouts, below which their endings are chance."""


def check(view: RunView) -> Outcome:
    """Count rewards against errors and endings."""
    lacking = cannot_tell(view, IDS)
    if lacking:
        return [*lacking]
    rows = read_rows(view)
    if view.trainer != "uptrend" and not any(r.has("reward") for r in rows):
        return [CannotTell(id, "rollouts have no column reward") for id in IDS]
    found = [_errors(view, rows), _absent(view, rows) or _unfinished(view, rows)]
    return [f for f in found if f is not None]


def _errors(view: RunView, rows: list[Rows]) -> Finding | None:
    """An error besides a reward; one while closing comes after the score, and changes nothing."""
    flags = []
    for r in rows:
        failed = np.array([boundary_of(e) not in ("", "close") for e in r.texts("error")], np.bool_)
        flags.append(failed & np.isfinite(r.reward_n))
    count, total = sum(int(f.sum()) for f in flags), sum(map(len, rows))
    if not count:
        return None
    where = point(rows, flags)
    text = f"{count} of {total} rollouts have an error and a reward, such as {_first_error(rows, flags)!r}"
    severity = Severity.WARNING if count >= 0.01 * total else Severity.NOTE
    summary = "Failures were scored as if they were answers: they should have no reward."
    evidence = [Evidence(text, count / total, **where)]
    return finding(view, "reward.error-scored", severity, Confidence.HIGH, summary, evidence)


def _first_error(rows: list[Rows], flags: list[Flags]) -> str:
    for r, f in zip(rows, flags, strict=True):
        if f.any():
            return str(r.texts("error")[int(f.argmax())])[:80]
    return ""


def _absent(view: RunView, rows: list[Rows]) -> Finding | None:
    """Rollouts without a reward, and without an error that says why."""
    flags = [np.isnan(r.reward_n) & np.array([not e for e in r.texts("error")], np.bool_) for r in rows]
    unscored = sum(int(np.isnan(r.reward_n).sum()) for r in rows)
    count, total = sum(int(f.sum()) for f in flags), sum(map(len, rows))
    if unscored >= 0.5 * total:
        text = f"{unscored} of {total} rollouts have no reward"
        where = point(rows, [np.isnan(r.reward_n) for r in rows])
        evidence = [Evidence(text, unscored / total, "reward/mean", **where)]
        summary = "Most rollouts were never scored."
        return finding(view, "reward.never-computed", Severity.CRITICAL, Confidence.HIGH, summary, evidence)
    if not count:
        return None
    text = f"{count} of {total} rollouts have no reward, and no error says why"
    evidence = [Evidence(text, count / total, "reward/mean", **point(rows, flags))]
    summary = "There are fewer rewards than rollouts."
    return finding(view, "reward.wrong-length", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _unfinished(view: RunView, rows: list[Rows]) -> Finding | None:
    """Rollouts of several turns that run out before anything gives a reward."""
    if (view.value("sampling.max_turns") or 1) < 2:
        return None
    out = [np.isin(r.ended_n, UNFINISHED) for r in rows]
    total, count = sum(map(len, rows)), sum(int(f.sum()) for f in out)
    low = [f & (r.reward_n <= r.by_rollout("reward_low") + 1e-6) for r, f in zip(rows, out, strict=True)]
    bottom = sum(int(f.sum()) for f in low)
    if total < ENOUGH or count < 0.9 * total or bottom < 0.95 * count:
        return None
    text = f"{count} of {total} rollouts ran out of turns or tokens, and {bottom} of these earned the least there is"
    evidence = [Evidence(text, count / total, "sampling/ended/turn-limit/share", **point(rows, low))]
    summary = "Rollouts end before they do what is rewarded: the event that gives a reward hardly ever happens."
    return finding(view, "reward.never-computed", Severity.WARNING, Confidence.MEDIUM, summary, evidence)
