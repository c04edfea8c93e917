"""Tools and the tasks' own state: tools that are never called, that fail and are scored, and
rollouts that mix.
"""

import re

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import (
    CRITICAL,
    PAGE_SUMMARY,
    PROOF,
    SIGNAL,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
    warn_if,
)
from uptrend.doctor.groups import count_flags, rollout_evidence
from uptrend.records import Ending, Evidence
from uptrend.records.table import RolloutTable

TURNS = "sampling/turns/mean"
# Steps, and rollouts or tool results, below which a share is chance.
FEWEST = 5
ENOUGH = 32
SPOKEN_OF = r"\b(tools?|functions?)\b"
# What a tool says that failed by itself; other errors are often the model's own.
BROKEN = (
    r"timed[ -]?out|timeout|connection (refused|reset|aborted|error)|service unavailable|internal"
    r" server error"
    r"|bad gateway|too many requests|rate limit|broken pipe|no space left|out of memory"
)
# Characters of a message that can be an error; a document may speak of anything.
SHORT = 500
# Share of rollouts that could not be scored from which something is broken.
MIN_FAILED_SHARE = 0.05
# Clocks and durations differ by right.
NUMBERS = re.compile(r"\d+")


def too_many_failed(case: Case, by_tool: bool) -> Found | Lacking | None:
    """Report rollouts that could not be scored because of tools, or else because of tasks and
    scorers.
    """
    failed, rollouts = (case.curve(f"sampling/{kind}/count")[1] for kind in ("failed", "rollouts"))
    if len(failed) == 0 or len(rollouts) == 0:
        return Lacking("failed rollouts were not counted")
    share = float(failed.sum() / max(1.0, rollouts.sum()))
    ended = case.summary("sampling/ended/tool-error/share")
    is_by_tool = ended is not None and float(np.mean(ended.values)) > share / 2
    if share < MIN_FAILED_SHARE or len(failed) < FEWEST or is_by_tool is not by_tool:
        return None
    text = (
        f"{share:.0%} of rollouts could not be scored because"
        f" {'a tool' if by_tool else 'a task or a scorer'} failed"
    )
    summary = f"{text}: they teach nothing, and the rest is a selection."
    shown = Evidence(
        f"{failed.sum():.0f} of {rollouts.sum():.0f} rollouts.", share, "sampling/failed/count"
    )
    return Found(CRITICAL if share > 0.5 else WARNING, SIGNAL, summary, [shown])


@check("tool.never-called")
def never_called(case: Case) -> Answer:
    """Report tools that are there, with turns to use them in, and that no rollout calls."""
    answers = [_single_turns(case)]
    if lacking := case.why_no_rollouts(["messages"]):
        return [Lacking(lacking), *answers]
    rows = case.tables_with("messages")
    total = sum(map(len, case.tables_with("messages")))
    if _results(rows) or any(r.messages.calls_m.null_count < len(r.messages.calls_m) for r in rows):
        return answers
    spoken_m = [
        np.isin(r.messages.role_m, ("system", "user")) & r.messages.matches(SPOKEN_OF) for r in rows
    ]
    spoken = [r.flag(r.messages.rollout_m[flags]) for r, flags in zip(rows, spoken_m, strict=True)]
    has_turns = (case.value("sampling.max_turns") or 1) >= 2
    if not has_turns or total < ENOUGH or count_flags(spoken) < 0.9 * total:
        return answers
    tried = sum(len(r.messages.problem_m) - r.messages.problem_m.null_count for r in rows)
    text = (
        f"0 of {total} rollouts call a tool, though prompts speak of tools; {tried} tried and could"
        " not be read"
    )
    return [
        *answers,
        Found(WARNING, SIGNAL, PAGE_SUMMARY, [rollout_evidence(rows, spoken, text, 0.0, TURNS)]),
    ]


def _single_turns(case: Case) -> Found | Lacking | None:
    """Judge by scalars: rollouts of one turn where several are allowed, and no token from a
    tool.
    """
    turns = case.summary(TURNS)
    told = case.summary("tokens/tool/count")
    allowed = case.value("sampling.max_turns")
    if turns is None:
        return Lacking("turns were not counted")
    # TRL counts calls only where it was given tools.
    is_counted = case.view.trainer == "trl" and not case.view.rollout_steps
    has_tools = allowed >= 2 if isinstance(allowed, int) else is_counted
    is_told = told is not None and told.last > 0
    if not has_tools or len(turns.values) < FEWEST or turns.last > 1.02 or is_told:
        return None
    reason = f"up to {allowed} turns are allowed" if allowed else "there are tools"
    text = f"Rollouts have {turns.last:.2f} turns though {reason}: the tools are never called."
    shown = case.evidence(TURNS, f"{turns.last:.2f} turns per rollout.")
    return Found(warn_if(not case.is_learning), SIGNAL, text, [shown])


@check("tool.errors-swallowed")
def errors_swallowed(case: Case) -> Answer:
    """Report tools that break down in rollouts that are scored as if the model had been wrong."""
    failed = too_many_failed(case, by_tool=True)
    answers = [failed] if isinstance(failed, Found) else []
    if lacking := case.why_no_rollouts(["messages"]):
        return [*answers, Lacking(lacking)]
    rows = case.tables_with("messages")
    results = _results(rows)
    if not results and not any(
        r.messages.calls_m.null_count < len(r.messages.calls_m) for r in rows
    ):
        return answers
    if not any(r.has("reward") for r in rows):
        return [*answers, Lacking("no rewards")]
    flags = []
    examples = list[Evidence]()
    count = 0
    has_ended = False
    for r in rows:
        broken_m = (r.messages.role_m == "tool") & r.messages.matches(BROKEN, SHORT)
        crashed = (r.ended_n == Ending.TOOL_ERROR.value) & np.isfinite(r.reward_n)
        wrong = np.isfinite(r.reward_n) & ~(r.by_rollout("correct") == 1)
        flags.append((r.flag(r.messages.rollout_m[broken_m]) & wrong) | crashed)
        count = count + int(broken_m.sum())
        has_ended = has_ended or bool(crashed.any())
        if broken_m.any():
            at = int(broken_m.argmax())
            result = " ".join(str(r.messages.content_m[at].as_py()).split())[:80]
            name = r.name(int(r.messages.rollout_m[at]))
            examples.append(Evidence(f"such as {result!r}", step=r.step, rollout=name))
    scored = count_flags(flags)
    if not has_ended and (results < ENOUGH or count < 0.1 * results or scored < 3):
        return answers
    text = (
        f"{count} of {results} tool results are breakdowns; {scored} rollouts with one were scored"
        " as wrong answers"
    )
    shown = [rollout_evidence(rows, flags, text, count / max(results, 1)), *examples[:1]]
    return [*answers, Found(WARNING, PROOF if has_ended else SIGNAL, PAGE_SUMMARY, shown)]


@check("task.state-leaks", columns=["messages", "task"])
def state_leaks(case: Case) -> Answer:
    """Report rollouts of a task that did exactly the same and were shown different things, early or
    late.
    """
    rows = case.tables_with("messages", "task")
    repeated = 0
    differing = list[tuple[RolloutTable, int, str]]()
    for r in dict.fromkeys((rows[0], rows[-1])):
        again, others = _compare(r)
        repeated = repeated + again
        differing = differing + others
    if not repeated:
        return Lacking("no two rollouts of a task did the same and were answered")
    if len(differing) < 2 or len(differing) < 0.02 * repeated:
        return None
    r, rollout, said = differing[0]
    text = (
        f"{len(differing)} of {repeated} answers of the task differ from the first one to the very"
        " same history"
    )
    first = Evidence(text, len(differing) / repeated, step=r.step, rollout=r.name(rollout))
    return Found(WARNING, SIGNAL, PAGE_SUMMARY, [first, Evidence(f"such as {said!r}")])


def _results(rows: list[RolloutTable]) -> int:
    return count_flags(r.messages.role_m == "tool" for r in rows)


def _compare(r: RolloutTable) -> tuple[int, list[tuple[RolloutTable, int, str]]]:
    """Count the task's answers to a history that had one already, and return those that were other
    ones.
    """
    # Everything before an answer is the key: the same words and calls must bring the same answer.
    first: dict[int, str] = {}
    repeated = 0
    differing = list[tuple[RolloutTable, int, str]]()
    tasks = r.texts("task")
    talk = r.messages
    speaker = -1
    messages = zip(
        talk.rollout_m,
        talk.role_m,
        talk.content_m.to_pylist(),
        talk.calls_m.to_pylist(),
        strict=True,
    )
    for n, role, said, calls in messages:
        if n != speaker:
            speaker = n
            history = hash(tasks[n])
            is_spoken = False
        content = said or ""
        if is_spoken and role in ("tool", "user"):
            plain = NUMBERS.sub("#", content)
            repeated += history in first
            if first.setdefault(history, plain) != plain:
                differing.append((r, int(n), content[:80]))
        is_spoken |= role == "assistant"
        history = hash((history, role, content, calls))
    return repeated, differing
