"""Causes that recorded rollouts show: faults planted into the rows of two real runs, and the causes
named.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from curve_runs import findings, healthy, lacks, severities
from synthetic import rollout_of
from tampered import Row, each, places, shifted, tampered, without
from uptrend.algo import advantages
from uptrend.doctor.case import Case
from uptrend.doctor.checks.sampling import dead_share, fit_beta
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.groups import recompute_advantages
from uptrend.records import Basis, Reward, Role, RunView, Sequence, Severity, rollouts_table
from uptrend.records.schema import TOKEN_COLUMNS
from uptrend.tasks.answers import is_right

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
MODEL, PROMPT, TOOL = Role.MODEL, Role.PROMPT, Role.TOOL
DEAD = "advantage/dead/share"
# Name: run, edit, changes of the view, and the expected causes with their severity and, if given,
# their first figure.
Expected = dict[str, Any]
Table = dict[str, tuple[str, Any, dict[str, Any], Expected]]
Edit = Callable[[list[Row]], list[Row] | None]


def learning(**keys: Any) -> dict[str, Any]:
    return {"learning": keys}


def score(row: Row, right: bool, said: str | None = None) -> None:
    row["correct"], row["reward"] = right, 1.0 if right else -1.0
    if said is not None:
        row["messages"][-1]["content"] = said


def number(row: Row) -> int:
    return 8 * int(row["group"].rpartition("-")[2]) + int(row["index"])


TRAINED, UNTRAINED, STOP = "mask.tool-trained", "mask.model-untrained", "mask.stop-untrained"
BLIND, ANEW = "mask.attention-blind", "tokens.retokenized"


def weigh(role: Role, weight: float, count: int | None = None) -> Callable[[Row], None]:
    def change(row: Row) -> None:
        for place in places(row, role)[:count]:
            row["weights"][place] = weight

    return change


def leave_out(**why: Any) -> Callable[[Row], None]:
    return lambda row: row.update(why, weights=[0.0] * len(row["ids"]))


def hide(role: Role) -> Callable[[Row], None]:
    return lambda row: row.update(attended=[r != role for r in row["roles"]])


def untrain_stops(row: Row) -> None:
    if row["ended"] == "stop-token":
        row["weights"][-1] = 0.0


TOKENS: Table = {
    "loss on tools": ("musique", each(weigh(TOOL, 0.01)), {}, {TRAINED: CRITICAL}),
    "loss on a prompt token": ("musique", each(weigh(PROMPT, 1.0, 1), [5]), {}, {TRAINED: (CRITICAL, 2)}),
    "first tokens left out": ("tiny", each(weigh(MODEL, 0.0, 1), range(16)), {}, {UNTRAINED: WARNING}),
    "everything left out": ("tiny", each(leave_out(ended="turn-limit")), {}, {UNTRAINED: (CRITICAL, 1.0)}),
    "stop tokens left out": ("tiny", each(untrain_stops), {}, {STOP: WARNING}),
    "left out without a score": ("tiny", each(leave_out(reward=None), [3]), {}, {}),
    "left out with its group": ("tiny", each(lambda r: r.update(kept=False, weights=None), [4]), {}, {}),
    "cut and left out": ("tiny", each(leave_out(ended="length"), [5]), {}, {UNTRAINED: WARNING}),
    "cut and left out by TRL": ("tiny", each(leave_out(ended="length"), [5]), {"trainer": "trl", "config": {}}, {}),
    "cut and left out by config": ("tiny", each(leave_out(ended="length"), [5]), learning(mask_truncated=True), {}),
    "late and left out by config": (
        "tiny", each(leave_out(ended="time-limit"), [5]), learning(mask_truncated=True), {}),
    "prompts hidden": ("musique", each(hide(PROMPT)), {}, {BLIND: (CRITICAL, 1.0)}),
    "tools hidden": ("musique", each(hide(TOOL)), {}, {BLIND: (CRITICAL, 1.0)}),
    "a prompt hidden": ("tiny", each(hide(PROMPT), [0]), {}, {BLIND: WARNING}),
    "a token never sampled": (
        "tiny", each(lambda r: r["sampler"].__setitem__(places(r, MODEL)[0], None), [7]), {}, {ANEW: CRITICAL}),
    "a rollout without versions": (
        "tiny", each(lambda r: r.update(versions=[None] * len(r["ids"])), [0]), {}, {ANEW: CRITICAL}),
    "more tokens in the learner": (
        "tiny", each(lambda r: r.update(learner=[*r["learner"], -0.5]), [9]), {}, {ANEW: (CRITICAL, 4)}),
}  # fmt: skip

ONE, WRONG, SIGN = "config.group-of-one", "advantage.wrong-groups", "advantage.sign"
BLOWN, UNSEEN = "advantage.blow-up", "advantage.metric-blind"


def advise(rows: list[Row], values: np.ndarray) -> None:
    for row, value in zip(rows, values, strict=True):
        row["advantages"] = [float(value) * (role == 1) for role in row["roles"]]


def centered(rows: list[Row], order: np.ndarray | None = None) -> np.ndarray:
    """Torch's advantages: by group ids, or by position after a shuffle."""
    rewards, groups = (np.array([row[key] for row in rows]) for key in ("reward", "group"))
    values = np.empty(len(rows))
    place = np.arange(len(rows)) if order is None else order
    numbers = (
        np.unique(groups, return_inverse=True)[1] if order is None else np.arange(len(rows)) // 8
    )
    given = torch.from_numpy(rewards[place]), torch.from_numpy(numbers)
    values[place] = advantages(*given, scale="group", baseline="mean").numpy()
    return values


def shuffle_groups(rows: list[Row]) -> None:
    advise(rows, centered(rows, np.random.default_rng(0).permutation(len(rows))))


def nudge(rows: list[Row]) -> None:
    values = centered(rows)
    values[11] += 0.05
    advise(rows, values)


def swap(rows: list[Row]) -> None:
    rows[0]["group"], rows[8]["group"] = rows[8]["group"], rows[0]["group"]


def times(factor: float) -> Callable[[list[Row]], None]:
    return lambda rows: advise(rows, factor * centered(rows))


def score_in_fp32(low: float, high: float, weight: float = 1.0) -> Callable[[list[Row]], None]:
    """Score as TRL does, in fp32: groups of equal rewards get advantages of rounding error."""

    def change(rows: list[Row]) -> None:
        for row in rows:
            # Every other group is live; of the rest, each has one reward.
            row["reward"] = high if number(row) // 8 % 2 and int(row["index"]) % 2 else low
            row["weights"] = [float(role == MODEL) for role in row["roles"]]
        by_group = {row["group"]: [r for r in rows if r["group"] == row["group"]] for row in rows}
        for group in by_group.values():
            rewards = torch.tensor([r["reward"] for r in group])
            # An ulp off, as a mean over another order of summation is.
            mean = torch.nextafter(rewards.mean(), torch.tensor(1e9))
            advise(group, (weight * (rewards - mean) / (rewards.std() + 1e-4)).numpy())

    return change


DECIMALS: dict[str, Any] = {
    "trainer": "trl",
    "metrics": {},
    "learning": {"scale": "group", "baseline": "mean"},
}
GROUPS: Table = {
    "decimal rewards in fp32": ("tiny", score_in_fp32(0.8, 0.1), DECIMALS, {}),
    "large decimal rewards in fp32": ("tiny", score_in_fp32(17.1, 3.3), DECIMALS, {}),
    "another trainer's advantages 10 times as large": (
        "tiny", score_in_fp32(0.0, 1.0, 10.0), DECIMALS, {BLOWN: CRITICAL}),
    "updates that go the wrong way": (
        "tiny", each(lambda _: None), {"metrics": {"learner/response/mean": -np.array([0.2, 0.1, 0.1, 0.2])}},
        {SIGN: CRITICAL}),
    "updates that mostly go the right way": (
        "tiny", each(lambda _: None), {"metrics": {"learner/response/mean": np.array([0.2, -0.1, 0.1, 0.2])}}, {}),
    "advantages by position": ("tiny", shuffle_groups, {}, {WRONG: CRITICAL}),
    "one wrong advantage": ("tiny", nudge, {}, {WRONG: (CRITICAL, 4 / 32)}),
    "one wrong advantage, another trainer": ("tiny", nudge, {"trainer": "trl", "config": {}}, {WRONG: CRITICAL}),
    "groups of two tasks": ("tiny", swap, {}, {WRONG: (CRITICAL, 8 / 32)}),
    "the wrong sign": ("tiny", times(-1), {}, {SIGN: (CRITICAL, 1.0)}),
    "groups of one": (
        "tiny", each(lambda row: row.update(group=f"{row['group']}-{row['index']}")), {},
        {ONE: CRITICAL, BLOWN: CRITICAL, UNSEEN: WARNING}),
    "twice the size": ("tiny", times(2), {}, {BLOWN: CRITICAL}),
    "less than the size": ("tiny", times(0.5), {}, {BLOWN: WARNING}),
    "any size where it is not scaled by group": ("tiny", times(1000), learning(scale="none"), {BLOWN: WARNING}),
    "any size of a leave-one-out baseline": (
        "tiny", times(1000), learning(baseline="leave_one_out"), {BLOWN: CRITICAL}),
    "rewards that hardly differ": (
        "tiny", each(lambda row: row.update(reward=-1.0 + 1e-5 * (row["index"] % 3))), {},
        {WRONG: CRITICAL, BLOWN: WARNING, UNSEEN: WARNING}),
    "a metric that does not see dead groups": (
        "tiny", each(lambda row: row.update(reward=-1.0), range(40)), {"metrics": {DEAD: np.zeros(4)}},
        {WRONG: CRITICAL, UNSEEN: WARNING}),
}  # fmt: skip

ERROR, NEVER, LENGTH = "reward.error-scored", "reward.never-computed", "reward.wrong-length"
MISALIGNED, REJECTED, TWICE = "reward.misaligned", "reward.gold-rejected", "reward.nondeterministic"
STRICT, GOLD = "reward.strict-parser", "data.wrong-gold"
REVERSED, DROWNED = "advantage.sign", "reward.component-dominates"
WORN, CUT, MOVING = "task.state-leaks", "context.completion-truncated", "reward.scale-moves"
SCORING = (ERROR, NEVER, LENGTH, MISALIGNED, REJECTED, TWICE, STRICT, GOLD, DROWNED, REVERSED)
PAYING = (*SCORING, WORN, CUT, MOVING)
FAILED = "score: ValueError('no number')"


def misalign(rows: list[Row]) -> None:
    random = np.random.default_rng(0)
    answers = [row["answer"] for row in rows]
    for row, other in zip(rows, answers[8:] + answers[:8], strict=True):
        said = row["answer"] if random.random() < 0.6 else answers[random.integers(len(answers))]
        score(row, is_right(said, other), said)


def move(rows: list[Row]) -> None:
    """Give each rollout the reward of the one before it."""
    said = [is_said(row) for row in rows]
    for row, of_another in zip(rows, said[-1:] + said[:-1], strict=True):
        score(row, of_another)


def misplace(rows: list[Row]) -> None:
    """Pay now and then for another task's answer, and never for the task's own."""
    for n, row in enumerate(rows):
        said = rows[0]["answer"] if n % 16 == 1 else row["answer"] if n % 2 else "999"
        score(row, n % 16 == 1 and row["answer"] != said, said)


def wear(rows: list[Row]) -> None:
    """Let all rollouts of a group say the same, and pay only the first of them."""
    firsts = {row["group"]: row for row in rows if row["index"] == 0}
    for row in rows:
        kept = ("index", "correct", "reward")
        row.update({key: value for key, value in firsts[row["group"]].items() if key not in kept})
        score(row, row["index"] == 0 and is_said(row))


def cut(row: Row) -> None:
    """Cut answers of more than one character after the first."""
    answer = row["answer"]
    row["ended"] = "length" if len(answer) > 1 else row["ended"]
    score(row, len(answer) == 1, answer[:1])


def box(row: Row) -> None:
    score(row, False, f"So \\boxed{{{row['answer']}}}" if number(row) % 3 == 0 else "no idea")


def mumble(row: Row) -> None:
    score(row, False, f"I say {number(row) % 20} {number(row) % 7}")


def disagree(row: Row) -> None:
    score(row, number(row) >= 16, "1234" if number(row) < 16 else row["answer"])


def contradict(row: Row) -> None:
    if not row["correct"]:
        row["answer"], row["reward"] = ("7777", -1.0) if row["index"] % 2 else ("8888", -0.99)


def undecided(row: Row) -> None:
    row.update(reward=None, error="score: Undecided('no reward function could tell')")


def fail(row: Row) -> None:
    row.update(error=FAILED, reward=None)


def is_said(row: Row) -> bool:
    return bool(row["messages"][-1]["content"].strip() == row["answer"])


def reject(kind: Callable[[str], bool]) -> Callable[[Row], None]:
    return lambda row: score(row, is_said(row) and not kind(row["answer"]))


def add(part: Callable[[Row], float]) -> Callable[[Row], None]:
    """Let the reward have a second part, of a name that says nothing."""

    def change(row: Row) -> None:
        bounds = {"low": None, "high": None, "weight": 1.0}
        row["parts"] = [
            {"name": "a", "value": float(is_said(row)), **bounds},
            {"name": "b", "value": part(row), **bounds},
        ]
        row.update(reward=sum(p["value"] for p in row["parts"]), reward_low=None, reward_high=None)

    return change


def shift_golds(rows: list[Row]) -> None:
    golds = [row["answer"] for row in rows]
    for row, gold in zip(rows, golds[8:] + golds[:8], strict=True):
        row["answer"] = gold
        score(row, is_said(row))


def spoil(row: Row) -> None:
    row["answer"] += "0"
    score(row, is_said(row))


SCORES: Table = {
    "rewards of the rollout before": ("tiny", move, {}, {MISALIGNED: CRITICAL}),
    "answers paid where they are wrong and refused where they are right": (
        "tiny", misplace, {}, {MISALIGNED: CRITICAL}),
    "tasks that wear out": ("tiny", wear, {}, {WORN: CRITICAL, TWICE: CRITICAL, REJECTED: CRITICAL}),
    "answers that are cut in two": ("tiny", each(cut), {}, {CUT: WARNING}),
    "right answers that earn more from step to step": (
        "tiny", each(lambda row: row.update(reward=row["step"] * float(is_said(row)), reward_low=None)), {},
        {MOVING: WARNING}),
    "right answers earn less": (
        "tiny", each(lambda row: row.update(reward=-row["reward"], correct=not row["correct"])), {},
        {REVERSED: CRITICAL, REJECTED: WARNING}),
    "negative answers rejected": ("tiny", each(reject(lambda gold: gold[0] == "-")), {}, {REJECTED: CRITICAL}),
    "large answers rejected": ("tiny", each(reject(lambda gold: len(gold.strip("-")) > 1)), {}, {REJECTED: CRITICAL}),
    "wrong answers paid": (
        "tiny", each(lambda row: score(row, is_said(row) or len(row["messages"][-1]["content"]) > 1)), {},
        {REJECTED: CRITICAL}),
    "length drowns the answer": (
        "tiny", each(add(lambda row: 5.0 * (sum(map(ord, row["messages"][-1]["content"])) % 2))), {},
        {DROWNED: WARNING}),
    "a bonus beside the answer": ("tiny", each(add(lambda row: 0.2 * (row["messages"][-1]["content"] > ""))), {}, {}),
    "partial credit": (
        "tiny", each(add(lambda row: -0.05 * min(8, len(row["messages"][-1]["content"])))), {}, {}),
    "golds of other prompts": ("tiny", shift_golds, {}, {GOLD: CRITICAL}),
    "some golds that contradict their prompts": (
        "tiny", each(spoil, range(16)), {}, {GOLD: CRITICAL}),
    "answers of other tasks": ("tiny", misalign, {}, {MISALIGNED: CRITICAL}),
    "gold answers rejected": ("tiny", each(lambda row: score(row, False)), {}, {REJECTED: (CRITICAL, 1.0)}),
    "gold answers paid in part": (
        "tiny", each(lambda row: row.update(correct=False, reward=0.5 if row["correct"] else -1.0)), {},
        {REJECTED: (NOTE, 1.0)}),
    "one reward per group": (
        "tiny", each(lambda row: row.update(reward=0.2 + 0.0125 * (number(row) // 8))), {}, {LENGTH: (CRITICAL, 1.0)}),
    "one reward for everything": ("tiny", each(lambda row: row.update(reward=0.25)), {}, {}),
    "two rewards for the same tokens": (
        "tiny", each(lambda row: row.update(reward=row["reward"] + 0.01 * (row["index"] % 2))), {}, {TWICE: CRITICAL}),
    "two gold answers of a question": ("tiny", each(contradict), {}, {GOLD: WARNING}),
    "two gold answers of one question": (
        "tiny", each(lambda row: row.update(answer="99"), [1]), {}, {GOLD: (WARNING, 4 / 32)}),
    "sure of other answers": ("tiny", each(disagree), {}, {GOLD: (NOTE, 8 / 32)}),
    "answers in boxes": ("tiny", each(box), {}, {STRICT: (WARNING, pytest.approx(1 / 3, abs=0.08))}),
    "numbers by chance": ("tiny", each(mumble), {}, {}),
    "an error with a reward": ("tiny", each(lambda r: r.update(error=FAILED), [0]), {}, {ERROR: (WARNING, 4 / 256)}),
    "an error while closing": ("tiny", each(lambda row: row.update(error="close: OSError()"), [0]), {}, {}),
    "an error without a reward": ("tiny", each(fail, [0]), {}, {}),
    "a reward that is missing": ("tiny", each(lambda row: row.update(reward=None), [2]), {}, {LENGTH: CRITICAL}),
    "a scorer that always fails": ("tiny", each(fail), {}, {ERROR: CRITICAL}),
    "no scorer that can tell": ("tiny", each(undecided), {}, {NEVER: (CRITICAL, 1.0)}),
    "no column of rewards": ("tiny", each(fail), {"trainer": "trl"}, {}),
    "out of turns": (
        "musique", each(lambda row: row.update(ended="turn-limit", reward=0.0)), {}, {NEVER: (WARNING, 1.0)}),
    "out of time": (
        "musique", each(lambda row: row.update(ended="time-limit", reward=0.0)), {}, {NEVER: (WARNING, 1.0)}),
}  # fmt: skip

UNCALLED, SWALLOWED, LEAKS = "tool.never-called", "tool.errors-swallowed", "task.state-leaks"


def talk(begin: int) -> Callable[[Row], None]:
    return lambda row: row.update(
        messages=[*row["messages"][:2], {**row["messages"][2], "calls": None}][begin:]
    )


def break_down(error: str) -> Callable[[Row], None]:
    def change(row: Row) -> None:
        row["correct"] = False
        for message in row["messages"]:
            if message["role"] == "tool":
                message["content"] = error

    return change


def act(row: Row, answer: str) -> None:
    call = {"role": "assistant", "content": "look", "calls": "[]", "problem": None}
    row["messages"] = [
        *row["messages"][:2],
        call,
        {"role": "tool", "content": answer, "calls": None, "problem": None},
    ]


BROKEN, MISTAKE = "TimeoutError: the search did not answer", "ValueError: this query is empty"
TOOLS: Table = {
    "no calls": ("musique", each(talk(0)), {}, {UNCALLED: WARNING}),
    "no calls, and no word of tools": ("musique", each(talk(1)), {}, {}),
    "breakdowns that are scored": (
        "musique", each(break_down(BROKEN), range(32)), {}, {SWALLOWED: (WARNING, pytest.approx(0.5, abs=0.2))}),
    "the model's own mistakes": ("musique", each(break_down(MISTAKE), range(32)), {}, {}),
    "crashes that are scored": ("musique", each(lambda r: r.update(ended="tool-error"), [3]), {}, {SWALLOWED: WARNING}),
    "other observations": (
        "musique", each(lambda row: act(row, "a file" if row["index"] % 2 else "another's file")), {},
        {LEAKS: (WARNING, 64 / 112)}),
    "clocks": ("musique", each(lambda row: act(row, f"done in {row['index']} ms")), {}, {}),
}  # fmt: skip

TRUNCATED, NO_STOP, PROMPTS = (
    "context.completion-truncated",
    "sampling.no-stop",
    "context.prompt-truncated",
)
COLD, FEW = "sampling.temperature-low", "sampling.few-generations"


def repeat(reward: Callable[[int], float]) -> Callable[[list[Row]], None]:
    """Let every rollout say what the first of its group says."""

    def edit(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            row.update({name: rows[n - n % 8][name] for name in TOKEN_COLUMNS})
            score(row, reward(n) > 0)

    return edit


def shrink(rows: list[Row]) -> list[Row]:
    random = np.random.default_rng(rows[0]["step"])
    kept = [row for n, row in enumerate(rows) if n % 8 < 2]
    for row in kept:
        score(row, bool(random.random() < 0.12))
    return kept


def cut(share: float, costs: bool) -> Callable[[list[Row]], None]:
    def edit(rows: list[Row]) -> None:
        random = np.random.default_rng(rows[0]["step"])
        for row in rows:
            is_cut = random.random() < share
            row["ended"] = "length" if is_cut else "stop-token"
            score(row, bool(random.random() < (0.0 if is_cut and costs else 0.6)))

    return edit


# One group is right, or another cause would explain equal rewards.
ONE_RIGHT = repeat(lambda n: 1.0 if n < 8 else -1.0)
TOO_LONG = "prompt: 900 tokens exceed sampling.max_prompt = 512"
COMPLETIONS: Table = {
    "groups that say one thing": ("tiny", ONE_RIGHT, {}, {COLD: (WARNING, 1 / 8)}),
    "groups that say one thing when cold": (
        "tiny", ONE_RIGHT, {"sampling": {"temperature": 0.1}}, {COLD: (WARNING, 1 / 8)}),
    "a constant reward is no matter of temperature": ("tiny", repeat(lambda _: -1.0), {}, {}),
    "groups that are too small": ("tiny", shrink, {}, {FEW: WARNING}),
    "prompts that do not fit": (
        "tiny", each(lambda row: row.update(error=TOO_LONG, reward=None), range(8)), {}, {PROMPTS: (WARNING, 1 / 8)}),
    "some cut that fail": ("tiny", cut(0.4, True), {}, {TRUNCATED: WARNING}),
    "some cut that do not": ("tiny", cut(0.4, False), {}, {}),
    "few cut": ("tiny", cut(0.05, True), {}, {}),
    "all cut that fail": ("tiny", cut(1.0, True), {}, {NO_STOP: WARNING}),
    "all cut that do not": ("tiny", cut(1.0, False), {}, {}),
}  # fmt: skip

DUPLICATES, EXCEEDS, LEAK, ORDER = (
    "data.duplicates",
    "data.batch-exceeds",
    "data.leak",
    "data.order",
)
SCALE = "reward.scale-moves"


def rename(task: Callable[[int, list[Row]], str]) -> Callable[[list[Row]], None]:
    def edit(rows: list[Row]) -> None:
        names = [task(n, rows) for n in range(len(rows))]
        for row, name in zip(rows, names, strict=True):
            row["task"] = name

    return edit


def sort(row: Row) -> None:
    late = row["step"] > 2
    row.update(family="4hop" if late else "2hop", reward_high=2.0 if late else 1.0)


ONLY_EIGHT = rename(lambda n, _: f"task {n // 8}")
TWO_GROUPS = rename(lambda n, rows: rows[n % 32]["task"])
DATA: Table = {
    "the same task twice in a step": ("tiny", TWO_GROUPS, {}, {DUPLICATES: (WARNING, 0.5)}),
    "fewer tasks than the taskset claims": ("tiny", ONLY_EIGHT, {}, {DUPLICATES: WARNING}),
    "few tasks of a taskset that claims nothing": ("tiny", ONLY_EIGHT, {"info": {}, "config": {}}, {}),
    "more groups than tasks": ("tiny", list, {"info": {"tasks": {"count": 5}}}, {EXCEEDS: (WARNING, 8)}),
    "families in order": ("tiny", each(sort), {}, {ORDER: (WARNING, 1.0), SCALE: (WARNING, 1.0)}),
    "families in an order that is stated": ("tiny", each(sort), {"tasks": {"stages": [{"start": 3}]}}, {}),
}  # fmt: skip

TABLES: list[tuple[tuple[str, ...], Table]] = [
    (("mask.", ANEW), TOKENS),
    (("advantage.", ONE), GROUPS),
    (PAYING, SCORES),
    ((UNCALLED, SWALLOWED, LEAKS), TOOLS),
    ((TRUNCATED, NO_STOP, PROMPTS, COLD, FEW), COMPLETIONS),
    ((DUPLICATES, EXCEEDS, LEAK, ORDER, SCALE), DATA),
]
CASES = [
    pytest.param(causes, *case, id=name) for causes, table in TABLES for name, case in table.items()
]


def changed(view: RunView, edit: Edit, changes: dict[str, Any]) -> RunView:
    """Return the run with rows edited; `changes` are fields of the view, or sections of its config
    with new keys.
    """
    fields = {key: value for key, value in changes.items() if key in RunView.__dataclass_fields__}
    sections = {
        key: {**view.config.get(key, {}), **changes[key]} for key in changes.keys() - fields.keys()
    }
    if sections:
        fields["config"] = {**view.config, **sections}
    return tampered(view, edit, **fields)


@pytest.mark.parametrize(("causes", "run", "edit", "changes", "expected"), CASES)
def test_planted_faults(
    causes: tuple[str, ...], run: str, edit: Edit, changes: dict[str, Any], expected: Expected,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    found = findings(changed(request.getfixturevalue(run), edit, changes), causes)
    told = {id: (f.severity, f.evidence[0].value) if isinstance(expected.get(id), tuple) else f.severity
            for id, f in found.items()}  # fmt: skip
    assert told == expected


def test_a_rejected_class_and_an_exception_are_named(tiny: RunView) -> None:
    rejected = findings(tampered(tiny, each(reject(lambda gold: gold[0] == "-"))), REJECTED)[
        REJECTED
    ]
    assert "that are negative" in rejected.summary
    failed = findings(tampered(tiny, each(fail)), ERROR)[ERROR]
    assert "256 of 256 rollouts failed with ValueError('no number')" in failed.summary


def test_a_passed_probe_does_not_exclude_what_records_prove(tiny: RunView) -> None:
    told = replace(
        tampered(tiny, each(reject(lambda gold: gold[0] == "-"))),
        events=[{"event": "acquitted", "id": REJECTED}],
    )
    assert REJECTED in {finding.id for finding in diagnose(told).findings}


def test_counts_and_the_rollout_to_open(musique: RunView) -> None:
    (evidence,) = findings(tampered(musique, TOKENS["loss on tools"][1]), TRAINED)[TRAINED].evidence
    rows = {step: musique.read_rollouts(step).to_pylist() for step in (1, 2)}
    assert (
        evidence.value == sum(len(places(row, TOOL)) for step in rows for row in rows[step]) > 1000
    )
    step, group, index = evidence.rollout.split("/")
    (opened,) = [r for r in rows[int(step)] if (r["group"], r["index"]) == (group, int(index))]
    assert places(opened, TOOL)


def test_a_learner_that_does_not_react_to_the_question_is_blind_without_a_record_of_attention(
    tiny: RunView,
) -> None:
    def deafen(row: Row) -> None:
        said = places(row, MODEL)
        for n, place in enumerate(said):
            words = sum(row["ids"][p] * 7**i for i, p in enumerate(said[: n + 1]))
            row["learner"][place] = -2.0 - 0.01 * (words % 100)

    seeing = without(tiny, "attended")
    assert (findings(seeing, BLIND), lacks(seeing, BLIND)) == ({}, {BLIND})
    for deaf in (tampered(seeing, each(deafen)), without(tampered(seeing, each(deafen)), "turns")):
        blind = findings(deaf, BLIND)[BLIND]
        assert (blind.severity, blind.evidence[0].value) == (CRITICAL, pytest.approx(0, abs=1e-6))


def test_held_out_tasks_that_are_trained_on(tiny: RunView) -> None:
    held = tiny.read_heldout(0).column("task")[3].as_py()
    found = findings(
        tampered(tiny, rename(lambda n, rows: held if 8 <= n < 16 else rows[n]["task"])), LEAK
    )[LEAK]
    assert (found.severity, found.evidence[0].value, found.evidence[0].rollout) == (
        CRITICAL,
        1 / 16,
        "1/000001-0001/0",
    )
    assert LEAK in lacks(replace(tiny, evals=()), "data.")


@pytest.mark.parametrize("seed", range(10))
def test_families_and_bounds_in_no_order(tiny: RunView, seed: int) -> None:
    def shuffle(row: Row) -> None:
        hops = int(np.random.default_rng([seed, row["step"], number(row) // 8]).integers(2, 5))
        row["family"], row["reward_high"] = f"{hops}hop", hops / 2

    assert findings(tampered(tiny, each(shuffle)), (ORDER, SCALE)) == {}


@pytest.mark.parametrize(("factor", "found"), [(1, {PROMPTS: WARNING}), (10, {})])
def test_prompts_at_the_limit_of_another_trainer(
    tiny: RunView, factor: int, found: dict[str, Severity]
) -> None:
    prompt = sum(role == 0 for role in tiny.read_rollouts(1).to_pylist()[0]["roles"])
    view = replace(tiny, trainer="trl", config={"sampling": {"max_prompt": factor * prompt}})
    assert severities(view, PROMPTS) == found
    assert lacks(replace(view, config={}), PROMPTS) == {PROMPTS}


MISMATCH, STALE, OFF_POLICY = "precision.mismatch", "sync.stale-weights", "sync.off-policy"
DISTRIBUTION, TEMPLATE, PADDING = (
    "sampling.truncated-distribution",
    "tokens.template",
    "tokens.padding",
)
LEAK_OF_DOCUMENTS = "mask.documents-leak"
GAPS = (MISMATCH, "sync.", DISTRIBUTION, TEMPLATE, PADDING, BLIND)


def softmaxes(
    sampled: float = 1.0, learned: float = 1.0, top_p: float = 1.0, noise: float = 0.0
) -> Edit:
    """Give log-probabilities as softmaxes of made-up logits would, at two temperatures."""

    def edit(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            random = np.random.default_rng([row["step"], n])
            for place in places(row, MODEL):
                logits = random.normal(size=50) * 3
                p = np.exp(logits / sampled) / np.exp(logits / sampled).sum()
                order = np.argsort(-p)
                kept = order[np.cumsum(p[order]) - p[order] < top_p]
                q = p[kept] / p[kept].sum()
                choice = random.choice(len(kept), p=q)
                seen = (logits + random.normal(size=50) * noise) / learned
                row["sampler"][place] = float(np.log(q[choice]))
                row["learner"][place] = float(seen[kept[choice]] - np.log(np.exp(seen).sum()))

    return edit


@pytest.mark.parametrize("temperature", [0.5, 1.3])
def test_a_temperature_that_the_learner_ignores(tiny: RunView, temperature: float) -> None:
    view = changed(tiny, softmaxes(sampled=temperature), {"sampling": {"temperature": temperature}})
    found = findings(view, DISTRIBUTION)[DISTRIBUTION]
    assert found.basis is Basis.PROOF
    assert found.evidence[0].value == pytest.approx(temperature, abs=0.12)


def gaps(size: Callable[[Row, int], Any]) -> Callable[[list[Row]], None]:
    """Move the learner's log-probabilities by random gaps, of a size by rollout and its number."""

    def edit(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            shifted(
                row, np.random.default_rng(n).normal(size=len(places(row, MODEL))) * size(row, n)
            )

    return edit


def of_short_rollouts(rows: list[Row]) -> None:
    middle = np.median([len(row["ids"]) for row in rows])
    gaps(lambda row, _: 0.3 if len(row["ids"]) < middle else 1e-5)(rows)


def in_every_third(rows: list[Row]) -> None:
    for n, row in enumerate(rows):
        shifted(
            row,
            np.random.default_rng(n).choice([-0.5, 0.5], size=len(places(row, MODEL)))
            * (n % 3 == 0),
        )


def versions(of: Callable[[int, int], int], gap: float = 0.0) -> Callable[[list[Row]], None]:
    def edit(rows: list[Row]) -> None:
        for row in rows:
            row["versions"] = [None if v is None else of(v, row["step"]) for v in row["versions"]]
        if gap:
            gaps(lambda *_: gap)(rows)

    return edit


def lag(version: int, step: int) -> int:
    return max(0, version - 2) + (step > 3)


AFTER_TOOLS = gaps(lambda row, _: [0.5 * (row["turns"][place] > 0) for place in places(row, MODEL)])
SHAPES: dict[str, tuple[str, Edit, dict[str, tuple[Severity, Basis]]]] = {
    "equal softmaxes": ("tiny", softmaxes(), {}),
    "little noise": ("tiny", softmaxes(noise=0.1), {}),
    "much noise": ("tiny", softmaxes(noise=1.0), {MISMATCH: (CRITICAL, Basis.SIGNAL)}),
    "one temperature": ("tiny", softmaxes(sampled=0.7, learned=0.7), {}),
    "a cut distribution": ("tiny", softmaxes(top_p=0.8), {DISTRIBUTION: (WARNING, Basis.SIGNAL)}),
    "from the second step on": (
        "tiny", gaps(lambda row, _: 0.15 * (row["step"] - 1)), {STALE: (CRITICAL, Basis.SIGNAL)}),
    "after tool results alone": ("musique", AFTER_TOOLS, {TEMPLATE: (CRITICAL, Basis.SIGNAL)}),
    "in short rollouts alone": ("tiny", of_short_rollouts, {PADDING: (WARNING, Basis.PROOF)}),
    "in every third rollout": ("tiny", in_every_third, {PADDING: (CRITICAL, Basis.SIGNAL)}),
    "rounding that some rollouts are spared": ("tiny", gaps(lambda _, n: 0.03 if n % 5 == 0 else 0), {}),
    "versions that stand still": ("tiny", versions(lambda *_: 0), {STALE: (CRITICAL, Basis.PROOF)}),
    "versions that lag": ("tiny", versions(lag), {OFF_POLICY: (NOTE, Basis.PROOF)}),
    "versions that lag explain gaps": ("tiny", versions(lag, 0.5), {OFF_POLICY: (WARNING, Basis.PROOF)}),
}  # fmt: skip


@pytest.mark.parametrize(("run", "edit", "expected"), SHAPES.values(), ids=SHAPES)
def test_shapes_of_the_gap(
    run: str, edit: Edit, expected: Any, request: pytest.FixtureRequest
) -> None:
    view = request.getfixturevalue(run)
    found = findings(
        tampered(view, edit, metrics={"reward/mean": view.metrics["reward/mean"]}), GAPS
    )
    assert {id: (f.severity, f.basis) for id, f in found.items()} == expected


# Columns that are not kept, and all causes of a family that can't be looked for then.
@pytest.mark.parametrize(
    ("run", "columns", "causes", "lacking"),
    [
        ("tiny", ["versions"], "sync.", {OFF_POLICY, STALE}),
        ("tiny", ["sampler"], ("mask.", ANEW), {ANEW, LEAK_OF_DOCUMENTS}),
        ("tiny", ["weights"], ("mask.", ANEW), {TRAINED, UNTRAINED, STOP}),
        ("tiny", ["group"], (WRONG, ONE), {WRONG, ONE}),
        ("tiny", ["advantages"], WRONG, {WRONG}),
        ("tiny", ["answer"], SCORING, {LENGTH, MISALIGNED, REJECTED, STRICT, GOLD, DROWNED}),
        ("tiny", ["ended"], (TRUNCATED, NO_STOP), {TRUNCATED, NO_STOP}),
        (
            "tiny",
            [],
            (UNCALLED, SWALLOWED, LEAKS),
            {LEAKS},
        ),  # no two rollouts of a task were answered
        ("musique", ["messages"], (UNCALLED, SWALLOWED, LEAKS), {UNCALLED, SWALLOWED, LEAKS}),
        ("musique", ["reward"], SWALLOWED, {SWALLOWED}),
    ],
)
def test_columns_that_are_needed(
    run: str, columns: list[str], causes: Any, lacking: set[str], request: pytest.FixtureRequest
) -> None:
    view = without(request.getfixturevalue(run), *columns)
    assert lacks(view, causes) == lacking
    assert findings(view, causes) == {}


def test_what_else_is_needed(tiny: RunView) -> None:
    penalized = changed(tiny, list, learning(kl={"beta": 0.1, "estimator": "k1"}))
    assert WRONG in lacks(penalized, WRONG)
    unlogged = {key: value for key, value in tiny.metrics.items() if key != DEAD}
    assert UNSEEN in lacks(replace(tiny, metrics=unlogged), UNSEEN)
    assert {ERROR, NEVER} <= lacks(tampered(tiny, each(fail), trainer="trl"), SCORING)
    assert OFF_POLICY in lacks(tampered(tiny, versions(lambda _, step: step + 5)), "sync."), (
        "another count"
    )


def test_an_end_that_stops_nothing_is_proven_by_logged_endings_alone(tiny: RunView) -> None:
    first = tiny.read_rollouts(int(tiny.rollout_steps[0])).to_pylist()[0]
    end_id = first["ids"][places(first, MODEL)[0]]
    info = tiny.info | {"model": {"special": [end_id]}}

    def begin_with_end(row: Row) -> None:
        # One more token follows, also in a rollout of one token.
        begin = places(row, MODEL)[0]
        for name in TOKEN_COLUMNS:
            if row[name]:
                row[name] = [*row[name][: begin + 1], *row[name][begin:]]
        row["ids"][begin] = end_id

    unlogged = {
        key: value for key, value in tiny.metrics.items() if not key.startswith("sampling/ended/")
    }
    all_cut = unlogged | {"sampling/ended/length/share": np.ones(len(tiny.steps))}
    for metrics, expected in ((all_cut, [WARNING]), (unlogged, [])):
        view = tampered(tiny, each(begin_with_end), metrics=metrics, info=info)
        proofs = [
            finding.severity
            for finding in findings(view, NO_STOP).values()
            if finding.basis is Basis.PROOF
        ]
        assert proofs == expected


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_recomputed_advantages_are_torchs(tiny: RunView, scale: Any, baseline: Any) -> None:
    g = Case(tiny).grouped_steps[0]
    given = torch.from_numpy(g.reward_n), torch.from_numpy(g.group_n)
    expected = advantages(*given, scale=scale, baseline=baseline).numpy()
    np.testing.assert_allclose(recompute_advantages(g, scale, baseline), expected, atol=1e-9)


def test_the_predicted_dead_share_is_that_of_simulated_groups() -> None:
    random = np.random.default_rng(0)
    p = random.beta(0.5, 1.5, size=200_000)
    alpha, beta = fit_beta(random.binomial(6, p) / 6, 6)
    assert (alpha, beta) == pytest.approx((0.5, 1.5), rel=0.05)
    for size in (4, 16):
        wins = random.binomial(size, p)
        assert dead_share(alpha, beta, size) == pytest.approx(
            np.mean((wins == 0) | (wins == size)), abs=0.01
        )


def rollouts(step: int, top: float, wrong_length: int) -> pa.Table:
    """Return eight groups of eight, half of them right; right ones have about 6 tokens."""
    random, made = np.random.default_rng(step), []
    for at in range(64):
        count = (6 if at % 2 == 0 else wrong_length) + int(random.integers(0, 3)) + 2
        sequence = Sequence(
            ids=np.arange(count, dtype=np.int32),
            turns=np.zeros(count, np.int32),
            roles=np.array([PROMPT] * 2 + [MODEL] * (count - 2), np.int8),
            versions=np.full(count, step, np.int32),
            sampler=np.full(count, -0.5, np.float32),
        )
        reward = Reward.of("answer", top * (at % 2 == 0), 0.0, top, at % 2 == 0)
        plain = rollout_of(step, f"g{at // 8}", at % 8, at % 2 == 0)
        made.append(replace(plain, sequences=(sequence,), reward=reward))
    return rollouts_table("run", made)


@pytest.mark.parametrize(
    ("top", "wrong", "expected"),
    [(1.0, 6, {}), (1.0, 24, {"advantage.length-bias": WARNING}), (2.0, 6, {SCALE: WARNING})],
)
def test_wrong_rollouts_that_grow_and_bounds_that_move(
    top: float, wrong: int, expected: dict[str, Severity]
) -> None:
    def read(step: int) -> pa.Table:
        way = (step - 1) / 11
        return rollouts(step, 1 + (top - 1) * way, round(6 + (wrong - 6) * way))

    view = healthy(12, trainer="uptrend", rollout_steps=tuple(range(1, 13)), read_rollouts=read)
    assert severities(view, ("advantage.length-bias", SCALE)) == expected
    assert lacks(view, "advantage.length-bias") == set()
