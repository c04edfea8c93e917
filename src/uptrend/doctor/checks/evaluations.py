"""Evaluations: each must score the same tasks, and the weights of its own step.

t = token that the model wrote, e = evaluation.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import (
    CRITICAL,
    PROOF,
    SIGNAL,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
    severity_by_share,
)
from uptrend.records import Evidence, RecordError
from uptrend.records.table import RolloutTable

# Evaluations whose rollouts are read: the first, the last, and some between.
MAX_EVALUATIONS_READ = 4
# Share of an evaluation's tasks that another lacks, from which their scores can't be compared.
CRITICAL_OTHER_SHARE = 0.5
# Tokens below which equal log-probabilities are chance: a model may be certain of a few.
MIN_SCORED_TOKENS = 20
# Log-probability below which the model had a choice, so that other weights give another number.
MAX_CERTAIN_LOGPROB = -1e-3
# Evaluations that must have the same text, where nothing but texts is known: greedy answers may
# stay the same through a few small updates.
MIN_EQUAL_TEXTS = 3


@check("eval.other-tasks")
def other_tasks(case: Case) -> Answer:
    """Report evaluations that score different tasks, by their recorded rollouts or hashes."""
    if len(case.view.evals) < 2:
        return Lacking("fewer than two evaluations")
    tasks_by_step: dict[int, set[str]] = {}
    for table in case.cached(_heldout_tables):
        tasks = set(filter(None, table.texts("task")))
        if tasks:
            tasks_by_step[table.step] = tasks
    if len(tasks_by_step) >= 2:
        return _different_tasks(tasks_by_step)
    hashes = {str(line["hash"]) for line in case.view.evals if line.get("hash")}
    if not hashes:
        return Lacking("neither the rollouts nor a hash of the evaluated tasks are recorded")
    if len(hashes) == 1:
        return None
    text = f"the tasks of {len(case.view.evals)} evaluations have {len(hashes)} different hashes"
    return _other_tasks_finding([Evidence(text, float(len(hashes)))], 1.0)


def _different_tasks(tasks_by_step: dict[int, set[str]]) -> Found | None:
    first, *others = tasks_by_step.items()
    _, first_tasks = first
    shares = {step: len(tasks - first_tasks) / len(tasks) for step, tasks in others}
    worst_step = max(shares, key=lambda step: shares[step])
    share = shares[worst_step]
    if share == 0:
        return None
    text = (
        f"{share:.0%} of the tasks of the evaluation after step {worst_step} are not among the"
        f" {len(first_tasks)} of the first"
    )
    return _other_tasks_finding([Evidence(text, share, step=worst_step)], share)


def _other_tasks_finding(evidence: list[Evidence], share: float) -> Found:
    summary = "Evaluations score other tasks each time, so that their curve shows the tasks too."
    severity = severity_by_share(share, critical=CRITICAL_OTHER_SHARE)
    return Found(severity, PROOF, summary, evidence)


@check("eval.other-weights")
def other_weights(case: Case) -> Answer:
    """Report evaluations by weights that are not those of their step."""
    tables = [table for table in case.cached(_heldout_tables) if table.has("roles")]
    if len(tables) < 2:
        return Lacking("rollouts of fewer than two evaluations are recorded")
    updates = case.curve("weights/update/norm")[1]
    if len(updates) and not updates.any():
        return None  # the weights did not move
    return _by_version(case, tables) or _by_logprob(_moved_between(case, tables))


def _moved_between(case: Case, tables: list[RolloutTable]) -> list[RolloutTable]:
    """Return the first evaluation, and of the later ones those of weights that moved since the
    evaluation before: the same weights rightly answer alike.
    """
    steps, updates = case.curve("weights/update/norm")
    moved = tables[:1]
    for earlier, later in pairwise(tables):
        is_between = (steps > earlier.step) & (steps <= later.step)
        if not is_between.any() or updates[is_between].any():
            moved.append(later)
    return moved


def _by_version(case: Case, tables: list[RolloutTable]) -> Answer:
    """Compare the version of the weights that answered with the evaluation's step."""
    if case.view.trainer != "uptrend":
        return None  # others count versions in their own way
    wrong_versions: list[tuple[int, int]] = []  # step of an evaluation, and version that answered
    for table in tables:
        versions = table.read_tokens_if_kept("versions")
        if versions is None:
            return None
        known_t = versions[table.model_t & np.isfinite(versions)]
        if len(known_t) and (known_t != table.step).any():
            wrong_versions.append((table.step, int(known_t.min())))
    if not wrong_versions:
        return None
    step, version = wrong_versions[-1]
    text = f"the evaluation after step {step} was answered by the weights of step {version}"
    evidence = Evidence(text, float(version), step=step)
    return Found(CRITICAL, PROOF, _summary([step]), [evidence])


def _by_logprob(tables: list[RolloutTable]) -> Answer:
    """Compare the log-probabilities of two evaluations' tokens: other weights give other ones."""
    has_logprobs = False
    for earlier, later in pairwise(tables):
        if not (earlier.has("sampler", "ids") and later.has("sampler", "ids")):
            continue
        has_logprobs = True
        earlier_ids, earlier_logprobs = _scored_tokens(earlier)
        later_ids, later_logprobs = _scored_tokens(later)
        # Log-probabilities of different texts differ anyway.
        has_same_ids = np.array_equal(earlier_ids, later_ids)
        n_uncertain = np.count_nonzero(earlier_logprobs < MAX_CERTAIN_LOGPROB)
        if not has_same_ids or n_uncertain < MIN_SCORED_TOKENS:
            continue
        if np.array_equal(earlier_logprobs, later_logprobs):
            text = (
                f"all {len(later_ids):,} tokens of the evaluations after steps {earlier.step} and"
                f" {later.step} have the same log-probabilities, to the last bit"
            )
            evidence = Evidence(text, float(len(later_ids)), step=later.step)
            return Found(CRITICAL, PROOF, _summary([earlier.step, later.step]), [evidence])
    if has_logprobs:
        return None
    return _by_text(tables)


def _by_text(tables: list[RolloutTable]) -> Answer:
    """Compare the tokens of all evaluations, where no log-probability was kept."""
    if not all(table.has("ids") for table in tables):
        return Lacking("tokens of the evaluations' answers are not recorded")
    first_ids = tables[0].read_tokens("ids")[tables[0].model_t]
    if len(tables) < MIN_EQUAL_TEXTS or len(first_ids) < MIN_SCORED_TOKENS:
        return None
    for table in tables[1:]:
        if not np.array_equal(table.read_tokens("ids")[table.model_t], first_ids):
            return None
    steps = [table.step for table in tables]
    text = f"all {len(first_ids):,} tokens of {len(tables)} evaluations are the same"
    evidence = Evidence(text, float(len(first_ids)), step=steps[-1])
    return Found(WARNING, SIGNAL, _summary(steps), [evidence])


def _scored_tokens(table: RolloutTable) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids and log-probabilities of the tokens that the model wrote."""
    logprobs = table.read_tokens("sampler")
    is_scored = table.model_t & np.isfinite(logprobs)
    return table.read_tokens("ids")[is_scored], logprobs[is_scored]


def _summary(steps: Iterable[int]) -> str:
    numbers = " and ".join(map(str, steps))
    plural = "s" if " " in numbers else ""
    return f"The evaluation after step{plural} {numbers} did not use the weights of that step."


def _heldout_tables(case: Case) -> list[RolloutTable]:
    """Return the rollouts of some evaluations, the first and the last among them."""
    steps = [int(line["step"]) for line in case.view.evals if isinstance(line.get("step"), int)]
    count = min(MAX_EVALUATIONS_READ, len(steps))
    tables: list[RolloutTable] = []
    for place in np.unique(np.linspace(0, len(steps) - 1, count).round().astype(int)):
        try:
            table = case.view.read_heldout(steps[place])
        except RecordError:  # damaged, or not kept
            continue
        if table.num_rows and {"task", "sequence"} <= set(table.column_names):
            tables.append(RolloutTable(steps[place], table))
    return tables
