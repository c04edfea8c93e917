"""Tools and the tasks' own state: tools that are never called, that fail and are scored, and
rollouts that influence each other.

n = rollout, m = message.
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
from uptrend.records.table import Flags, RolloutTable

TURNS_METRIC = "sampling/turns/mean"
# Steps, rollouts and tool results below which a share is chance.
MIN_STEPS = 5
MIN_ROLLOUTS = 32
MIN_RESULTS = 32
# Share of rollouts that could not be scored from which something is broken, and from which it is
# critical.
MIN_FAILED_SHARE = 0.05
CRITICAL_FAILED_SHARE = 0.5


def too_many_failed(case: Case, by_tool: bool) -> Found | Lacking | None:
    """Report rollouts that could not be scored because of tools, or else because of tasks and
    scorers.
    """
    failed = case.curve("sampling/failed/count")[1]
    rollouts = case.curve("sampling/rollouts/count")[1]
    if len(failed) == 0 or len(rollouts) == 0:
        return Lacking("failed rollouts were not counted")
    share = float(failed.sum() / max(1.0, rollouts.sum()))
    tool_errors = case.summary("sampling/ended/tool-error/share")
    # Tools are to blame where they ended most of the rollouts that failed.
    is_by_tool = tool_errors is not None and float(np.mean(tool_errors.values)) > share / 2
    if share < MIN_FAILED_SHARE or len(failed) < MIN_STEPS or is_by_tool is not by_tool:
        return None
    culprit = "a tool" if by_tool else "a task or a scorer"
    summary = (
        f"{share:.0%} of rollouts could not be scored because {culprit} failed: they teach nothing,"
        " and the rest is a selection."
    )
    text = f"{failed.sum():.0f} of {rollouts.sum():.0f} rollouts."
    evidence = Evidence(text, share, "sampling/failed/count")
    severity = CRITICAL if share > CRITICAL_FAILED_SHARE else WARNING
    return Found(severity, SIGNAL, summary, [evidence])


# Words by which a prompt speaks of tools, and share of rollouts with such a prompt from which the
# model was offered them.
TOOL_WORDS = r"\b(tools?|functions?)\b"
MIN_OFFERED_SHARE = 0.9
# Mean turns up to which rollouts have one: a few with two are retries.
MAX_SINGLE_TURNS = 1.02


@check("tool.never-called", by_source=True)
def never_called(case: Case) -> Answer:
    """Report tools that no rollout calls, though there are turns to use them in."""
    by_scalars = _single_turns(case)
    if lacking := case.why_no_rollouts(["messages"]):
        return [Lacking(lacking), by_scalars]
    return [by_scalars, _offered_and_never_called(case)]


def _single_turns(case: Case) -> Found | Lacking | None:
    """Judge by scalars: rollouts of one turn where several are allowed, and no token from a
    tool.
    """
    turns = case.summary(TURNS_METRIC)
    if turns is None:
        return Lacking("turns were not counted")
    max_turns = case.value("sampling.max_turns")
    if isinstance(max_turns, int):
        has_tools = max_turns >= 2
    else:  # TRL counts calls only where it was given tools
        has_tools = case.view.trainer == "trl" and not case.view.rollout_steps
    tool_tokens = case.summary("tokens/tool/count")
    has_tool_tokens = tool_tokens is not None and tool_tokens.last > 0
    if not has_tools or has_tool_tokens:
        return None
    if len(turns.values) < MIN_STEPS or turns.last > MAX_SINGLE_TURNS:
        return None
    reason = f"up to {max_turns} turns are allowed" if max_turns else "there are tools"
    summary = f"Rollouts have {turns.last:.2f} turns though {reason}: the tools are never called."
    evidence = case.evidence(TURNS_METRIC, f"{turns.last:.2f} turns per rollout.")
    return Found(warn_if(not case.is_learning), SIGNAL, summary, [evidence])


def _offered_and_never_called(case: Case) -> Found | None:
    """Judge by rollouts: prompts that speak of tools, several turns, and no call."""
    tables = case.tables_with("messages")
    max_turns = case.value("sampling.max_turns") or 1
    if _uses_tools(tables) or max_turns < 2:
        return None
    offered: list[Flags] = []
    unreadable_calls = 0
    for table in tables:
        messages = table.messages
        is_prompt_m = np.isin(messages.role_m, ("system", "user"))
        is_offer_m = is_prompt_m & messages.matches(TOOL_WORDS)
        offered.append(table.flag(messages.rollout_m[is_offer_m]))
        unreadable_calls += len(messages.problem_m) - messages.problem_m.null_count
    rollouts = sum(map(len, tables))
    if rollouts < MIN_ROLLOUTS or count_flags(offered) < MIN_OFFERED_SHARE * rollouts:
        return None
    text = (
        f"0 of {rollouts} rollouts call a tool, though prompts speak of tools; {unreadable_calls}"
        " tried and could not be read"
    )
    evidence = rollout_evidence(tables, offered, text, 0.0, TURNS_METRIC)
    return Found(WARNING, SIGNAL, PAGE_SUMMARY, [evidence])


def _count_results(tables: list[RolloutTable]) -> int:
    return count_flags(table.messages.role_m == "tool" for table in tables)


def _uses_tools(tables: list[RolloutTable]) -> bool:
    """Return True where a tool answered or was called."""
    calls = [table.messages.calls_m for table in tables]
    return _count_results(tables) > 0 or any(own.null_count < len(own) for own in calls)


# Errors of a tool that failed by itself; other errors are often the model's own.
BREAKDOWN_PATTERN = (
    r"timed[ -]?out|timeout|connection (refused|reset|aborted|error)|service unavailable|internal"
    r" server error"
    r"|bad gateway|too many requests|rate limit|broken pipe|no space left|out of memory"
)
# Length of a message that can be an error; a document may speak of anything.
MAX_ERROR_CHARACTERS = 500
# Share of tool results that are breakdowns, and rollouts with one that were scored as wrong, below
# which they are accidents.
MIN_BREAKDOWN_SHARE = 0.1
MIN_SCORED_ROLLOUTS = 3
# Characters of a message in the evidence.
EXAMPLE_CHARACTERS = 80


@check("tool.errors-swallowed", by_source=True)
def errors_swallowed(case: Case) -> Answer:
    """Report tools that break down in rollouts that are scored as if the model had been wrong."""
    failed = too_many_failed(case, by_tool=True)
    by_scalars = failed if isinstance(failed, Found) else None
    if lacking := case.why_no_rollouts(["messages"]):
        return [by_scalars, Lacking(lacking)]
    tables = case.tables_with("messages")
    if not _uses_tools(tables):
        return by_scalars
    if not any(table.has("reward") for table in tables):
        return [by_scalars, Lacking("no rewards")]
    return [by_scalars, _scored_breakdowns(tables)]


def _scored_breakdowns(tables: list[RolloutTable]) -> Found | None:
    """Find rollouts in which a tool broke down and that were scored as wrong answers."""
    flags: list[Flags] = []
    examples: list[Evidence] = []
    breakdowns = 0
    is_proven = False
    for table in tables:
        messages = table.messages
        is_short_error_m = messages.matches(BREAKDOWN_PATTERN, MAX_ERROR_CHARACTERS)
        is_broken_m = (messages.role_m == "tool") & is_short_error_m
        is_scored_n = np.isfinite(table.reward_n)
        is_wrong_n = is_scored_n & ~(table.numbers("correct") == 1)
        # A rollout that a tool error ended has no answer to score.
        is_ended_n = (table.ended_n == Ending.TOOL_ERROR.value) & is_scored_n
        is_broken_n = table.flag(messages.rollout_m[is_broken_m])
        flags.append((is_broken_n & is_wrong_n) | is_ended_n)
        breakdowns += int(is_broken_m.sum())
        is_proven |= bool(is_ended_n.any())
        if is_broken_m.any():
            examples.append(_breakdown_example(table, int(is_broken_m.argmax())))
    results = _count_results(tables)
    scored = count_flags(flags)
    is_often = results >= MIN_RESULTS and breakdowns >= MIN_BREAKDOWN_SHARE * results
    if not is_proven and (not is_often or scored < MIN_SCORED_ROLLOUTS):
        return None
    text = (
        f"{breakdowns} of {results} tool results are breakdowns; {scored} rollouts with one were"
        " scored as wrong answers"
    )
    evidence = rollout_evidence(tables, flags, text, breakdowns / max(results, 1))
    basis = PROOF if is_proven else SIGNAL
    return Found(WARNING, basis, PAGE_SUMMARY, [evidence, *examples[:1]])


def _breakdown_example(table: RolloutTable, message: int) -> Evidence:
    words = str(table.messages.content_m[message].as_py()).split()
    text = f"such as {' '.join(words)[:EXAMPLE_CHARACTERS]!r}"
    rollout = int(table.messages.rollout_m[message])
    return Evidence(text, step=table.step, rollout=table.name(rollout))


# Answers that differ after the same history, and their share, below which they are accidents.
MIN_DIFFERING = 2
MIN_DIFFERING_SHARE = 0.02
# Clocks and durations differ by right.
NUMBER_PATTERN = re.compile(r"\d+")


@check("task.state-leaks", columns=["messages", "task"], by_source=True)
def state_leaks(case: Case) -> Answer:
    """Report rollouts of a task that did exactly the same and got different answers from it, early
    or late.
    """
    tables = case.tables_with("messages", "task")
    first_and_last = dict.fromkeys((tables[0], tables[-1]))
    repeated = 0
    differing: list[tuple[RolloutTable, int, str]] = []
    for table in first_and_last:
        table_repeated, table_differing = _compare_answers(table)
        repeated += table_repeated
        for rollout, content in table_differing:
            differing.append((table, rollout, content))
    if not repeated:
        return Lacking("no two rollouts of a task did the same and were answered")
    if len(differing) < max(MIN_DIFFERING, MIN_DIFFERING_SHARE * repeated):
        return None
    table, rollout, content = differing[0]
    text = (
        f"{len(differing)} of {repeated} answers of the task differ from the first one to the very"
        " same history"
    )
    share = len(differing) / repeated
    evidence = Evidence(text, share, step=table.step, rollout=table.name(rollout))
    example = Evidence(f"such as {content!r}")
    return Found(WARNING, SIGNAL, PAGE_SUMMARY, [evidence, example])


def _compare_answers(table: RolloutTable) -> tuple[int, list[tuple[int, str]]]:
    """Return the number of the task's answers to a history that had one before, and the rollout and
    content of those that differ from it.
    """
    first_answer: dict[int, str] = {}
    repeated = 0
    differing: list[tuple[int, str]] = []
    tasks = table.texts("task")
    messages = zip(
        table.messages.rollout_m.tolist(),
        table.messages.role_m,
        table.messages.content_m.to_pylist(),
        table.messages.calls_m.to_pylist(),
        strict=True,
    )
    last_rollout = -1
    for rollout, role, text, calls in messages:
        if rollout != last_rollout:
            last_rollout = rollout
            history = hash(tasks[rollout])
            has_model_spoken = False
        content = text or ""
        if has_model_spoken and role in ("tool", "user"):
            answer = NUMBER_PATTERN.sub("#", content)
            repeated += history in first_answer
            if first_answer.setdefault(history, answer) != answer:
                differing.append((rollout, content[:EXAMPLE_CHARACTERS]))
        has_model_spoken |= role == "assistant"
        # Everything before an answer counts: the same words and calls must bring the same answer.
        history = hash((history, role, content, calls))
    return repeated, differing
