"""Scores of single rollouts: given where nothing failed, to the rollout that earned them, and for the answer it says.

Answers are read once more by a second reader, independent of every taskset's own: a strict one and a lenient one.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import AS_PAGE, Answer, Found, Lacking, by_share, check, warn_if
from uptrend.doctor.checks.advantages import ALL_DEAD, suspect_of_dead_run
from uptrend.doctor.checks.rewards import constant_reward
from uptrend.doctor.checks.tools import too_many_failed
from uptrend.doctor.curves import REWARD
from uptrend.doctor.rank import CRITICAL, NOTE, PROOF, SIGNAL, SUSPICION, WARNING
from uptrend.doctor.rows import Chosen, Flags, Ints, Rows, count_flags, seen_among, seen_in
from uptrend.records import Ending, Evidence, boundary_of

# Rollouts below which their endings are chance, and rollouts that must show a wrong score.
ENOUGH = 32
FEWEST = 3
# Rollouts that ended so had more to say: their last words are no answer yet.
UNFINISHED = (Ending.TURN_LIMIT.value, Ending.CONTEXT_FULL.value)
RAN_OUT = (*UNFINISHED, Ending.LENGTH.value)
# Shares of the wrong rollouts that the lenient reader accepts, over what it accepts by chance.
NOTED, WARNED = 0.05, 0.2

_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_MARK = re.compile(r"####\s*(.+)")
_NAMED = re.compile(r"answer(?:\s+is|\s*:|\s*=)\s*([^\n]+)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_EDGES = " \t\r\n.,;:!?'\"`*_$()[]"
# Characters in which an answer is looked for.
LONGEST = 2000


def fold(text: str) -> str:
    """Return a text as it is compared: case, spaces and punctuation at its edges do not matter."""
    return " ".join(text.lower().split()).strip(_EDGES)


def answer_of(text: str) -> str:
    """Return what a text gives as its answer: inside the last tags, or its first line."""
    begin = text.rfind("<answer>")
    if begin >= 0 and "</answer>" in text[begin:]:
        return fold(text[begin + len("<answer>") :].partition("</answer>")[0])
    return fold(text.strip().partition("\n")[0][:LONGEST])


@lru_cache(maxsize=4096)  # groups say the same thing often
def says(text: str, gold: str) -> bool:
    """Tell whether the answer is the gold one, word for word, plainly or where answers are put."""
    return answer_of(text) == fold(gold) and bool(fold(gold))


def says_somehow(text: str, gold: str) -> bool:
    """Tell whether a person would take it as the gold answer: boxed, in a sentence, or a number in another format."""
    return bool(({fold(gold), _number(gold)} - {""}) & _readings(text))


@lru_cache(maxsize=4096)
def _readings(text: str) -> frozenset[str]:
    """Return every answer that a text can be taken for."""
    end = text[-LONGEST:]  # what comes long before the end is work, not an answer
    given = [*_BOX.findall(end)[-1:], *_MARK.findall(end)[-1:], *_NAMED.findall(end)[-1:], answer_of(text)]
    numbers = {_number(part) for part in _NUMBER.findall(end)} if len(text) <= LONGEST else set()
    alone = numbers if len(numbers) == 1 else set()
    return frozenset({fold(part) for part in given} | {_number(part) for part in given} | alone) - {""}


def _number(text: str) -> str:
    """Return a text that is one number without its formatting; empty for any other."""
    found = _NUMBER.findall(text)
    bare = fold(text).lstrip("=≈ ").replace("\\", "")
    if len(found) != 1 or len(bare) > len(found[0]) + 2:
        return ""
    value = float(found[0].replace(",", ""))
    return str(int(value)) if value.is_integer() else repr(value)


@dataclass(frozen=True)
class Answers(Chosen):
    """The scored rollouts of one step that said something to a task with a gold answer."""

    said_n: list[str]
    gold_n: list[str]
    task_n: Ints
    right_n: Flags
    """True where the strict reader finds the gold answer."""
    rewarded_n: Flags
    """True where the run counted it as right."""
    low_n: Flags
    """True where it earned the least that there is."""

    def accepted(self, golds: Sequence[str], among_n: Flags) -> Flags:
        """Flag those of some rollouts that the lenient reader takes for these gold answers."""
        trios = zip(among_n, self.said_n, golds, strict=True)
        return np.array([bool(is_among) and says_somehow(said, gold) for is_among, said, gold in trios], np.bool_)

    def golds_of_others(self) -> list[str]:
        """Return for each rollout the gold answer of the next task of its step; its own where there is no other."""
        gold_of = dict(zip(self.task_n.tolist(), self.gold_n, strict=True))
        tasks = sorted(gold_of)
        following = dict(zip(tasks, tasks[1:] + tasks[:1], strict=True))
        return [gold_of[following[task]] for task in self.task_n.tolist()]


def read_answers(case: Case) -> list[Answers]:
    """Return the answers of each step that has texts, gold answers, tasks and rewards."""
    found = []
    for r in case.rows_with("messages", "answer", "reward"):
        said, gold = r.said_n, r.texts("answer")
        scored = np.isfinite(r.reward_n) & np.array([e is None for e in r.texts("error")], np.bool_)
        place = np.array([n for n in np.flatnonzero(scored) if said[n] is not None and gold[n]], np.int64)
        if r.task_n is None or not len(place):
            continue
        texts, golds = [said[n] or "" for n in place], [gold[n] or "" for n in place]
        right = np.array(list(map(says, texts, golds)), np.bool_)
        reward, low, high, correct = (
            r.by_rollout(key)[place] for key in ("reward", "reward_low", "reward_high", "correct")
        )
        low = np.where(np.isfinite(low), low, np.nanmin(reward))
        high = np.where(np.isfinite(high), high, np.nanmax(reward))
        rewarded = np.where(np.isfinite(correct), correct != 0, reward >= high - 1e-6).astype(np.bool_)
        is_low = (reward <= low + 1e-6) & (high > low)
        found.append(Answers(r, place, texts, golds, r.task_n[place], right, rewarded, is_low))
    return found


@check("reward.error-scored")
def error_scored(case: Case) -> Answer:
    """Report rollouts that failed and have a reward all the same, or that fail so often that scoring is broken."""
    failed = too_many_failed(case, by_tool=False)
    if lacking := _why_no_scores(case):
        return [Lacking(lacking), failed]
    rows, total = case.rows, sum(map(len, case.rows))
    # An error while closing comes after the score, and changes nothing.
    errors = [np.array([boundary_of(e) not in ("", "close") for e in r.texts("error")], np.bool_) for r in rows]
    flags = [f & np.isfinite(r.reward_n) for r, f in zip(rows, errors, strict=True)]
    count = count_flags(flags)
    if not count:
        return failed
    error = next(r.texts("error")[int(f.argmax())] for r, f in zip(rows, flags, strict=True) if f.any())
    text = f"{count} of {total} rollouts have an error and a reward, such as {str(error)[:80]!r}"
    severity, shown = warn_if(count >= 0.01 * total), seen_in(rows, flags, text, count / total)
    return [failed, Found(severity, PROOF, AS_PAGE, [shown])]


@check("reward.never-computed")
def never_computed(case: Case) -> Answer:
    """Report runs in which nothing is scored, or what would give a reward hardly ever happens."""
    if (paid := _never_paid(case)) is not None and paid.value == 0:
        text = "The event that gives a reward may never occur: count it in a few rollouts to settle it."
        return Found(NOTE, SUSPICION, text, [paid])
    if lacking := _why_no_scores(case):
        return Lacking(lacking)
    rows, total = case.rows, sum(map(len, case.rows))
    unscored = [np.isnan(r.reward_n) for r in rows]
    if (count := count_flags(unscored)) >= 0.5 * total:
        shown = seen_in(rows, unscored, f"{count} of {total} rollouts have no reward", count / total, REWARD)
        return Found(CRITICAL, PROOF, "Most rollouts were never scored.", [shown])
    if _missing_scores(rows) or (case.value("sampling.max_turns") or 1) < 2:
        return None
    # Rollouts of several turns that run out before anything gives a reward.
    out = [np.isin(r.ended_n, RAN_OUT) for r in rows]
    low = [f & (r.reward_n <= r.by_rollout("reward_low") + 1e-6) for r, f in zip(rows, out, strict=True)]
    count, bottom = count_flags(out), count_flags(low)
    if total < ENOUGH or count < 0.9 * total or bottom < 0.95 * count:
        return None
    text = f"{count} of {total} rollouts ran out of turns or tokens, and {bottom} of these earned the least there is"
    shown = seen_in(rows, low, text, count / total, "sampling/ended/turn-limit/share")
    return Found(WARNING, SIGNAL, AS_PAGE, [shown])


@check("reward.misaligned")
def misaligned(case: Case) -> Answer:
    """Report scores against the answers of other tasks: right answers rejected, and rewarded ones that say others."""
    if lacking := _why_no_answers(case):
        return Lacking(lacking)
    steps = case.once(read_answers)
    rejected, strange = [a.right_n & ~a.rewarded_n for a in steps], [a.rewarded_n & ~a.right_n for a in steps]
    right, rewarded = count_flags(a.right_n for a in steps), count_flags(a.rewarded_n for a in steps)
    out, odd = count_flags(rejected), count_flags(strange)
    if min(out, odd) < FEWEST or out < 0.3 * right or odd < 0.3 * rewarded:
        return None
    anothers = 0
    for a, flags in zip(steps, strange, strict=True):
        golds = set(map(fold, a.gold_n))
        anothers += sum(answer_of(a.said_n[n]) in golds for n in np.flatnonzero(flags))
    fits, turns = anothers / odd, case.curve("sampling/turns/mean")[1]
    has_turns = len(turns) > 0 and float(turns.mean()) > 1.1
    if fits < 0.5 and (has_turns or case.once(_broadcast)):  # an answer may be in earlier turns
        return None
    text = f"{out} of {right} rollouts that say their task's answer are not counted as right"
    rest = f"{odd} of {rewarded} that are counted as right say something else"
    other = f"{rest}; {fits:.0%} of these say another answer of the step"
    evidence = [seen_among(steps, rejected, text, out / right), seen_among(steps, strange, other, fits)]
    return Found(CRITICAL, PROOF if fits >= 0.8 else SIGNAL, AS_PAGE, evidence)


@check("reward.wrong-length")
def wrong_length(case: Case) -> Answer:
    """Report fewer rewards than rollouts, or one reward spread over all rollouts of a group or step."""
    if suspect_of_dead_run(case) == "reward.wrong-length":
        text = "All rollouts of a step have one reward, and another one at the next: one score may be spread over all."
        return Found(WARNING, SIGNAL, text, [ALL_DEAD])
    answers: list[Found | Lacking | None] = []
    if not _why_no_scores(case):
        rows, total = case.rows, sum(map(len, case.rows))
        unexplained, unscored = _missing_scores(rows), count_flags(np.isnan(r.reward_n) for r in rows)
        if unexplained and unscored < 0.5 * total:
            count = count_flags(unexplained)
            text = f"{count} of {total} rollouts have no reward, and no error says why"
            shown = seen_in(rows, unexplained, text, count / total, REWARD)
            answers.append(Found(CRITICAL, PROOF, AS_PAGE, [shown]))
    if lacking := _why_no_answers(case):
        return [*answers, Lacking(lacking)]
    return [*answers, None if case.once(misaligned.judge) else case.once(_broadcast)]


@check("reward.gold-rejected")
def gold_rejected(case: Case) -> Answer:
    """Report answers that say the gold answer, word for word, and are not rewarded."""
    if paid := _never_paid(case):
        text = "The scorer may reject every answer: score a few gold answers to settle it."
        return Found(NOTE, SUSPICION, text, [paid])
    if lacking := _why_no_answers(case):
        return Lacking(lacking)
    return None if case.once(misaligned.judge) or case.once(_broadcast) else case.once(_rejected)


@check("reward.nondeterministic", columns=["reward", "task"])
def nondeterministic(case: Case) -> Found | None:
    """Report the same tokens on the same task with two rewards, where nothing else explains them."""
    if any(isinstance(case.once(other), Found) for other in (misaligned.judge, _broadcast, _rejected)):
        return None
    rows = case.rows_with("ids", "reward", "task")
    counts = [_conflicts(r) for r in rows]
    repeated, bad = sum(again for again, _ in counts), count_flags(flags for _, flags in counts)
    if bad < 2 or bad < 0.01 * repeated:
        return None
    text = f"{bad} of {repeated} rollouts that say exactly what another of their group says have another reward"
    shown = seen_in(rows, [flags for _, flags in counts], text, bad / repeated)
    return Found(by_share(bad / repeated, critical=0.2), PROOF, AS_PAGE, [shown])


@check("reward.strict-parser")
def strict_parser(case: Case) -> Answer:
    """Report answers that a lenient reader finds where the scorer did not."""
    if (paid := _never_paid(case)) is not None and paid.value != 0:
        text = "The scorer may fail to read the answers: read a few rollouts to settle it."
        return Found(NOTE, SUSPICION, text, [paid])
    if lacking := _why_no_answers(case):
        return Lacking(lacking)
    steps = case.once(read_answers)
    wrong = [~a.rewarded_n & ~a.right_n for a in steps]
    accepted = [a.accepted(a.gold_n, flags) for a, flags in zip(steps, wrong, strict=True)]
    chance = count_flags(a.accepted(a.golds_of_others(), flags) for a, flags in zip(steps, wrong, strict=True))
    count, total = count_flags(accepted), count_flags(wrong)
    tasks = sum(len(np.unique(a.task_n[flags])) for a, flags in zip(steps, accepted, strict=True))
    share = (count - chance) / max(total, 1)
    if count < 10 or tasks < 3 or share < NOTED:
        return None
    text = f"a lenient reader takes {count} of {total} wrong rollouts for right ({chance} by chance)"
    summary = f"The scorer does not read {share:.0%} of what it calls wrong as a person would."
    return Found(warn_if(share >= WARNED), SIGNAL, summary, [seen_among(steps, accepted, text, share)])


@check("data.wrong-gold")
def wrong_gold(case: Case) -> Answer:
    """Report a question with two gold answers, or a model that agrees with itself and never with the gold answer."""
    if lacking := _why_no_answers(case):
        return Lacking(lacking)
    steps = case.once(read_answers)
    golds, bad, flags = dict[str, str](), set[str](), []
    for a in steps:
        names = a.rows.texts("task")
        tasks = [names[n] or "" for n in a.place_n]
        pairs = zip(tasks, map(fold, a.gold_n), strict=True)
        flags.append(np.array([golds.setdefault(task, gold) != gold for task, gold in pairs], np.bool_))
        bad |= {tasks[n] for n in np.flatnonzero(flags[-1])}
    if not bad:
        return _outvoted(steps)
    text = f"{len(bad)} of {len(golds)} tasks have more than one gold answer"
    shown = seen_among(steps, flags, text, len(bad) / len(golds))
    summary = "The same question has different gold answers, so at least one of them is wrong."
    return Found(warn_if(len(bad) >= 0.02 * len(golds)), PROOF, summary, [shown])


def _why_no_scores(case: Case) -> str:
    # Our own rollouts always have a place for a score.
    return case.why_no_rollouts(() if case.view.trainer == "uptrend" else ("reward",))


def _why_no_answers(case: Case) -> str:
    lacking = case.why_no_rollouts(["reward", "task", "answer", "messages"])
    return lacking or ("" if case.once(read_answers) else "no scored rollout has a gold answer and a text")


def _missing_scores(rows: list[Rows]) -> list[Flags]:
    """Flag rollouts without a reward, and without an error that says why; empty where there is none."""
    flags = [np.isnan(r.reward_n) & np.array([not e for e in r.texts("error")], np.bool_) for r in rows]
    return flags if count_flags(flags) else []


def _never_paid(case: Case) -> Evidence | None:
    """Return evidence where scalars alone show that no rollout was ever paid more than the least."""
    # Broken scorers are more common than tasks of which not one attempt succeeds. With rollouts, those decide.
    steps, values = case.curve(REWARD)
    if case.view.rollout_steps or not constant_reward.alarms(case) or np.ptp(values) > 0 or values[0] > 0:
        return None
    value = float(values[0])
    return Evidence(f"{value:.3g} at each of {len(values)} points, from the first on.", value, REWARD, int(steps[0]))


def _broadcast(case: Case) -> Found | None:
    """Find groups in which right and wrong answers earn the same, and some of them not the least that there is."""
    steps = case.once(read_answers)
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
        flags.append(same_n)
    if raised < FEWEST or flat < 0.9 * mixed:
        return None
    if np.ptp(np.concatenate([a.rows.reward_n for a in steps])) == 0:
        return None  # one reward for everything: a scorer that always says the same, not one that says it once
    text = f"in {flat} of {mixed} groups with right and wrong answers all rollouts have the same reward"
    return Found(CRITICAL, PROOF, AS_PAGE, [seen_among(steps, flags, text, flat / mixed, "reward/group_std/mean")])


def _rejected(case: Case) -> Found | None:
    """Find finished rollouts that say the gold answer and are not counted as right."""
    steps = case.once(read_answers)
    said = [a.right_n & ~np.isin(a.rows.ended_n[a.place_n], UNFINISHED) for a in steps]
    rejected = [flags & ~a.rewarded_n for flags, a in zip(said, steps, strict=True)]
    right, out = count_flags(said), count_flags(rejected)
    tasks = sum(len(np.unique(a.task_n[flags])) for a, flags in zip(steps, rejected, strict=True))
    if out < FEWEST or tasks < 2 or out < 0.5 * right:
        return None
    at_low = count_flags(flags & a.low_n for a, flags in zip(steps, rejected, strict=True))
    text = f"{out} of {right} rollouts that say the gold answer are not counted as right; {at_low} earned the least"
    # A task may ask for more than its last answer, and pay for what there is of it.
    sure = (NOTE, SUSPICION) if at_low < 0.5 * out else (CRITICAL, PROOF)
    return Found(*sure, AS_PAGE, [seen_among(steps, rejected, text, out / right)])


def _conflicts(r: Rows) -> tuple[int, Flags]:
    """Count rollouts with the tokens of an earlier one of the same task, and flag those with another reward."""
    flags, repeated = np.zeros(len(r), np.bool_), 0
    if r.task_n is None:
        return 0, flags
    ids, golds = r.read_tokens("ids"), r.texts("answer")  # one question with two golds is another fault
    first: dict[tuple[int, str | None, bytes, str], float] = {}
    # Rollouts without tokens have no place in `rollout_t`, and are not compared.
    for n, start in zip(*np.unique(r.rollout_t, return_index=True), strict=True):
        if not np.isfinite(r.reward_n[n]):
            continue
        end = np.searchsorted(r.rollout_t, n, "right")
        key = (int(r.task_n[n]), golds[n], ids[start:end].tobytes(), str(r.ended_n[n]))
        repeated += key in first
        flags[n] = abs(first.setdefault(key, r.reward_n[n]) - r.reward_n[n]) > 1e-6
    return repeated, flags


def _outvoted(steps: list[Answers]) -> Found | None:
    """Find a model that is mostly right, and sure of another answer than the gold on a good part of the tasks."""
    sure, tasks, flags = 0, 0, list[Flags]()
    for a in steps:
        against = np.zeros(len(a.place_n), np.bool_)
        for task in np.unique(a.task_n):
            of = np.flatnonzero(a.task_n == task)
            if len(of) < 4:
                continue
            tasks += 1
            said, votes = Counter(answer_of(a.said_n[n]) for n in of).most_common(1)[0]
            if votes >= 0.9 * len(of) and said and said != fold(a.gold_n[of[0]]) and not a.rewarded_n[of].any():
                sure += 1
                against[of] = True
        flags.append(against)
    right = count_flags(a.rewarded_n for a in steps) / sum(len(a.place_n) for a in steps)
    if right < 0.5 or sure < 5 or sure < 0.1 * tasks:
        return None
    text = f"on {sure} of {tasks} tasks nearly all rollouts agree on an answer that is not the gold one"
    summary = "The model is mostly right and sure of other answers than the gold ones on some tasks: look at these."
    return Found(NOTE, SUSPICION, summary, [seen_among(steps, flags, text, sure / tasks)])
