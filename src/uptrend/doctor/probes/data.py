"""Probes of tasks and limits: gold answers, repeated and leaked tasks, their order, the schedule, prompt lengths."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uptrend.doctor.answers import CLASSES, name_class, plain_question
from uptrend.doctor.probes.bench import Bench, ScoredPlay, play_scripts, seen
from uptrend.doctor.probes.probe import CRITICAL, NOTE, WARNING, Answer, probe, require
from uptrend.records import Ending, Finding, Fix, RewardOutOfBounds, Task, boundary_of
from uptrend.tasks.data import Data
from uptrend.tasks.pool import Cursor
from uptrend.tasks.rewards import NAMES, RENDERINGS
from uptrend.tasks.taskset import Taskset, known_gold, say
from uptrend.tasks.validate import HasVariants
from uptrend.tasks.validate import order as check_order
from uptrend.training.warmstart import why_left_out


@dataclass(frozen=True)
class GoldPlay:
    """A task with what its gold answer and wrong ones earned."""

    task: Task
    golds: list[ScoredPlay]  # one; none where no gold is known
    others: list[ScoredPlay]

    @property
    def earned(self) -> float:
        return next((p.reward.total for p in self.golds if p.reward), math.nan)

    @property
    def rival(self) -> float:
        """The most that a wrong answer earned."""
        return max((p.reward.total for p in self.others if p.reward), default=-math.inf)


def play_golds(bench: Bench) -> list[GoldPlay]:
    """Play gold and corrupted answers of 50 tasks, of every class of answers."""
    stage, held, generator, played = bench.stage, bench.heldout, random.Random(0), list[GoldPlay]()
    evaluated = min(bench.few(25), len(held.tasks))
    trained = min(bench.few(50) - evaluated, len(stage.tasks))
    for tasks, count, given in ((stage.tasks, trained, stage.taskset), (held.tasks, evaluated, held.taskset)):
        # Under some options not even gold reaches the maximum: those that prove the reward are played.
        taskset = given.proof() if isinstance(given, HasVariants) else given
        for task in _of_every_class(tasks, count, generator):
            experts = known_gold(taskset, task)
            plays = play_scripts(taskset, task, [*experts, *taskset.corrupted(task)])
            played.append(GoldPlay(task, plays[: len(experts)], plays[len(experts) :]))
    return played


@probe(
    "gold",
    finds=["reward.gold-rejected", "advantage.sign", "reward.error-scored", "reward.never-computed",
           "context.completion-truncated", "context.prompt-truncated"],
)  # fmt: skip
def gold(bench: Bench) -> Answer:
    """Score gold and corrupted answers of 50 tasks, of every class of answers, and gold in the model's tokens."""
    stage, played = bench.stage, bench.once(play_golds)
    rejected, form = _rejected(played), None
    if 2 * len(rejected) > len(played) and (form := _accepted_form(played, stage.taskset)):
        played = [_say_in(form, p, stage.taskset) for p in played]
        rejected = _rejected(played)
        yield f"written as {form}, "
    accepted = [p for p in played if p.golds and p not in rejected]
    is_bounded = not any(math.isnan(r.high) for p in played for r in [g.reward for g in p.golds] if r)
    lax = [
        (p.task, other) for p in played for other in p.others
        if p not in rejected and other.reward and (_is_best(other) if is_bounded else other.reward.total >= p.earned)
    ]  # fmt: skip
    judged, corrupted = len(accepted) + len(rejected), sum(len(p.others) for p in played)
    require(judged or corrupted, "no answer is known that should earn the most, or should not")
    yield f"{len(accepted)} of {judged} gold answers reach the maximum, {len(lax)} of {corrupted} corrupted ones do"
    yield from _failures(bench, played)
    low = [p for p in rejected if p.golds[0].reward]
    if low:
        worse = [p for p in low if p.earned < p.rival]
        named = name_class(*([p.task.answer for p in of] for of in (low, accepted)))
        summary = f"The reward rejects {len(low)} of {judged} gold answers: what is right does not earn the most."
        if len(worse) >= 0.9 * judged:
            summary = f"Right answers earn less than wrong ones on {len(worse)} of {judged} tasks: is a sign flipped?"
        elif named:
            summary = f"The reward rejects gold answers of one kind: {named}."
        # Without bounds, and where no gold is accepted, it may want words that nobody knows here.
        severity = CRITICAL if len(low) > 0.05 * judged and (is_bounded or accepted or worse) else WARNING
        evidence = [seen(_describe(p.task, p.golds[0])) for p in low[:3]]
        evidence += [seen(text) for text in _typed_answer(stage.taskset, low[0].task)]
        if len(worse) >= 0.9 * judged:
            yield bench.found("advantage.sign", severity, summary, evidence)
            severity = WARNING
        yield bench.found("reward.gold-rejected", severity, summary, evidence)
    if lax:
        summary = f"{len(lax)} of {corrupted} corrupted answers earn the maximum: the reward can be had without one."
        severity = CRITICAL if len(lax) > (0.05 if is_bounded else 0.4) * corrupted else WARNING
        yield bench.found("reward.gold-rejected", severity, summary, [seen(_describe(*each)) for each in lax[:3]])
    if judged == len(played) and not rejected and not form:
        yield from _gold_in_tokens(bench)


def _of_every_class(tasks: Sequence[Task], count: int, generator: random.Random) -> list[Task]:
    """Draw tasks, some of every class of answers that there is."""
    drawn = generator.sample(tasks, len(tasks))
    first = [task for holds in CLASSES.values() for task in [t for t in drawn if holds(t.answer)][: max(3, count // 8)]]
    return list({id(task): task for task in (*first, *drawn)}.values())[:count]


def _rejected(played: Sequence[GoldPlay]) -> list[GoldPlay]:
    """Return plays whose gold does not earn the most; without bounds, less than a wrong one, or as little as these."""
    least = min((o.reward.total for p in played for o in p.others if o.reward), default=-math.inf)
    top = max((p.earned for p in played if p.earned > p.rival), default=least + 1e-9)
    rejected = []
    for p, gold in [(one, gold) for one in played for gold in one.golds]:
        if gold.reward and not math.isnan(gold.reward.high):
            is_low = not _is_best(gold) and not _earns_most(gold, p.others)
        else:
            is_low = not p.earned >= p.rival or (p.earned == p.rival and p.earned < top)
        rejected += [p] if is_low else []
    return rejected


@dataclass(frozen=True)
class Form:
    """A way to write an answer: what is taken of it, and the words around that."""

    words: str
    part: str = ""

    def write(self, answer: str) -> str:
        """Return an answer in this form."""
        return self.words.format(PARTS[self.part](answer))

    def __str__(self) -> str:
        return repr(self.words.format("GOLD")) + (f" with {self.part}" if self.part else "")


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _as_python(answer: str) -> str:
    value = _json_value(answer)
    return str(value) if isinstance(value, bool | list | dict) else answer


def _first_of_list(answer: str) -> str:
    value = _json_value(answer)
    return str(value[0]) if isinstance(value, list) and value else answer


# An answer that is no text is recorded as JSON: a reward may compare with str() of it, or look into a list of synonyms.
PARTS: dict[str, Callable[[str], str]] = {
    "": lambda answer: answer,
    "the answer as Python prints it": _as_python,
    "the first of a list of answers": _first_of_list,
}


def _say_in(form: Form, played: GoldPlay, taskset: Taskset) -> GoldPlay:
    texts = [p.texts[-1][0] if p.texts else "" for p in played.others]
    first, *others = play_scripts(taskset, played.task, [say(form.write(t)) for t in (played.task.answer, *texts)])
    return GoldPlay(played.task, [first], others)


def _accepted_form(played: Sequence[GoldPlay], taskset: Taskset) -> Form | None:
    """Return the form of an answer in which a reward accepts gold; None where it does in none."""
    few = [p for p in played if p.golds and p.golds[0].texts == ((p.task.answer,),)][:6]
    for part, take in PARTS.items():
        if part and all(take(p.task.answer) == p.task.answer for p in few):
            continue
        for words in RENDERINGS if part else RENDERINGS[1:]:
            form = Form(words, part)
            if sum(p.earned > p.rival for p in (_say_in(form, p, taskset) for p in few)) > 4:
                return form
    return None


def _typed_answer(taskset: Taskset, task: Task) -> list[str]:
    """Say what a function of one's own is given as the answer where that is no text; nothing where it is."""
    if not isinstance(taskset, Data) or "row" not in task.data or set(taskset.options.reward) <= set(NAMES):
        return []
    _, answer = taskset.columns_of(task)
    if isinstance(answer, str):
        return []
    return [f"the function gets this row's answer as {type(answer).__name__}: {answer!r:.60}"]


def _failures(bench: Bench, played: Sequence[GoldPlay]) -> Answer:
    """Report gold answers that a reward can't judge, and answers that it fails on, with the commonest exception."""
    golds, every = [g for p in played for g in p.golds], [g for p in played for g in (*p.golds, *p.others)]
    for id, among, is_none in (("reward.never-computed", golds, True), ("reward.error-scored", every, False)):
        # A reward that leaves its bounds is another fault, which `bounds` finds.
        texts = [p.texts[-1][0] for p in among if p.reward is None and not isinstance(p.error, RewardOutOfBounds)]
        if texts := [text for text in texts if text.startswith("Undecided") is is_none]:
            (text, count), share = Counter(texts).most_common(1)[0], len(texts) / len(among)
            summary = f"The reward gives no number for {len(texts)} of {len(among)} answers: {count} times {text}."
            yield bench.found(id, CRITICAL if share > 0.5 else WARNING, summary, text, share)


@probe("bounds", finds=["reward.out-of-bounds"])
def bounds(bench: Bench) -> Answer:
    """Compare what gold, corrupted, cheating and the model's answers earn with the bounds that the reward states."""
    taskset = bench.stage.taskset
    require(isinstance(taskset, Data) and taskset.options.bounds, "no function of one's own states bounds")
    assert isinstance(taskset, Data)
    plays = [play for each in bench.once(play_golds) for play in (*each.golds, *each.others)]
    for task in bench.stage.tasks[: bench.few(8)]:
        plays += play_scripts(taskset, task, taskset.cheaters(task))
    failed = [r for r in bench.played if boundary_of(r.error) == "score" and r.task in bench.tasks]
    plays += bench.replay(failed[: bench.few(32)])
    errors = [play.error for play in plays if isinstance(play.error, RewardOutOfBounds)]
    yield f"{len(errors)} of {len(plays)} answers earn more or less than the bounds"
    if not errors:
        return
    furthest = max(errors, key=lambda error: max(error.value - error.high, error.low - error.value))
    summary = f"{furthest.sentence}: {len(errors)} of {len(plays)} answers could not be scored."
    right = taskset.bounds_that_hold(errors)
    in_python = str(right).replace("[", "(").replace("]", ")")
    way = f"Set tasks.bounds = {right} in the recipe, or bounds={in_python} in uptrend.train"
    fix = Fix(f"{way}: the least and the most that the reward pays.", {"uptrend": {"tasks.bounds": right}})
    values = sorted({error.value for error in errors})
    paid = ", ".join(f"{value:.9g}" for value in values[:8]) + ", …" * (len(values) > 8)
    evidence = seen(f"outside [{furthest.low:.9g}, {furthest.high:.9g}] it pays {paid}", furthest.value)
    yield bench.found("reward.out-of-bounds", CRITICAL, summary, [evidence], fix=fix)


def _is_best(played: ScoredPlay) -> bool:
    reward = played.reward
    return reward is not None and reward.correct and reward.is_best


def _earns_most(gold: ScoredPlay, others: Sequence[ScoredPlay]) -> bool:
    """Return True for a right answer that a penalty, such as one for length, keeps from the maximum."""
    reward, rivals = gold.reward, [p.reward.total for p in others if p.reward is not None]
    is_summed = reward is not None and reward.correct and len(reward.parts) > 1
    return reward is not None and is_summed and reward.total > max(rivals, default=-math.inf)


def _describe(task: Task, played: ScoredPlay) -> str:
    asked = next((m.content for m in reversed(task.messages) if m.role != "system"), "")[-60:]
    last, reward = played.texts[-1][0] if played.texts else "", played.reward
    if reward is None:
        return f"{asked!r} answered '' failed: {last}"
    return f"{asked!r} answered {last[-60:]!r} earned {reward.total:g} of {reward.high:g}"


def _gold_in_tokens(bench: Bench) -> Answer:
    """Judge gold in the model's tokens: a tokenizer may change the words, and limits may be too tight for them."""
    shown, s = bench.demonstrations, bench.config.sampling
    scored = [(r, r.reward) for r in shown if r.reward is not None]
    time = {"sampling.rollout_timeout": 4 * s.rollout_timeout}
    longer = Fix("Give rollouts as many seconds as the task takes.", {"uptrend": time})
    for ending, what, limit, more in (
        (Ending.TURN_LIMIT, "turns", f"sampling.max_turns = {s.max_turns} is too few", bench.more_turns),
        (Ending.TIME_LIMIT, "time", f"sampling.rollout_timeout = {s.rollout_timeout:g} is too short", longer),
    ):
        out = sum(r.ended is ending and not reward.is_best for r, reward in scored)
        if out > 0.5 * len(scored):  # a few rows of a dataset may be odd
            yield f"; {len(shown) - out} of {len(shown)} end within the {what}"
            text = f"the expert runs out of {what} in {out} of {len(shown)} tasks"
            id = "context.completion-truncated"
            yield bench.found(id, CRITICAL, f"{limit}: {text}.", text, out / len(shown), fix=more)
            return
    turns = [[np.unique(t.turns[t.sampled], return_counts=True)[1].max(initial=0) for t in r.sequences] for r in shown]
    long = [r for r, sizes in zip(shown, turns, strict=True) if max(sizes, default=0) > s.max_tokens]
    # Without bounds nobody said what is right.
    wrong = [r for r in shown if r.reward is None or not (r.reward.correct or math.isnan(r.reward.high))]
    if isinstance(bench.stage.taskset, HasVariants):
        wrong = [r for r in wrong if r.reward is None]  # a weak retriever bounds the expert too
    bad = sum(any(r is other for other in (*wrong, *long)) for r in shown)
    yield f"; {len(shown) - bad} of {len(shown)} can be said in the model's tokens"
    if not bad:
        return
    share = bad / len(shown)
    if wrong and all(boundary_of(r.error) == "prompt" for r in wrong):
        id, text = "context.prompt-truncated", str(wrong[0].error)
        summary = f"{share:.0%} of prompts can't be played: they exceed the limits of [sampling]."
    elif long or any(r.error and "sampling." in r.error for r in wrong):
        id, text = "context.completion-truncated", "; ".join(why_left_out(shown, s)) or str(wrong[0].error)
        summary = f"{share:.0%} of gold answers do not fit into the limits of [sampling]: {text}."
    else:
        id, text = "reward.gold-rejected", f"The expert's words became {wrong[0].messages[-1].content!r}"
        summary = f"{share:.0%} of gold answers are wrong once they are said in the model's tokens."
    longest = max((max(sizes, default=0) for sizes in turns), default=0)
    fix = bench.more_tokens(int(longest)) if id == "context.completion-truncated" and longest > s.max_tokens else None
    yield bench.found(id, CRITICAL if share > 0.5 else WARNING, summary, text, fix=fix)


def repeated_families(taskset: Taskset) -> frozenset[str]:
    """Return the families whose examples are one task, as their taskset declares."""
    return getattr(taskset, "repeated", frozenset())


def question(task: Task) -> str:
    """Return a task's question without instructions, case, spaces and punctuation that carry nothing."""
    said = " ".join(m.content for m in task.messages if m.role != "system") or task.messages[0].content
    return plain_question(said)


@probe("repeats", finds=["data.duplicates", "data.batch-exceeds"])
def repeats(bench: Bench) -> Answer:
    """Count different questions, in the pool and in the step that was drawn."""
    findings, worst, least = list[Finding](), 1.0, 0.9
    for stage in bench.pool.stages:
        declared = {task.family for task in stage.tasks} & repeated_families(stage.taskset)
        if declared:
            summary = f"Examples of {', '.join(sorted(declared))} repeat one task by declaration, held-out ones too."
            findings.append(bench.found("data.duplicates", NOTE, summary, "no generator makes different examples", 1.0))
        told_apart = [task for task in stage.tasks if task.family not in declared]
        unique = len({question(task) for task in told_apart})
        share = unique / len(told_apart) if told_apart else 1.0
        worst = min(worst, share)
        if share < least:
            summary = f"Of {len(told_apart)} training tasks only {unique} are different."
            severity = CRITICAL if share < 0.5 else WARNING
            findings.append(bench.found("data.duplicates", severity, summary, f"{share:.0%} are unique", share))
    drawn = {r.group: r.task for r in bench.played}
    families = repeated_families(bench.stage.taskset)
    known = {task: bench.tasks[task][0] for task in drawn.values() if task in bench.tasks}
    asked = {
        question(known[task]) if task in known and known[task].family not in families else task
        for task in drawn.values()
    }
    repeated = len(drawn) - len(asked)
    yield f"{worst:.1%} of training tasks are unique; {repeated} of {len(drawn)} groups repeat a task"
    yield from findings
    groups, tasks = bench.config.sampling.groups, min(len(s.tasks) for s in bench.pool.stages)
    if groups > tasks or (repeated and worst >= least):
        summary = f"A step draws the same task more than once: {groups} groups of {tasks} tasks."
        text = f"{repeated} of {len(drawn)} groups repeat another's task"
        yield bench.found("data.batch-exceeds", WARNING, summary, text, repeated)


@probe("leak", finds=["data.leak"])
def leak(bench: Bench) -> Answer:
    """Compare held-out tasks with all training tasks, by id and by wording."""
    declared = repeated_families(bench.heldout.taskset)
    held = [task for task in bench.heldout.tasks if task.family not in declared]
    require(held, "all examples repeat one task by declaration")
    asked = {question(task) for stage in bench.pool.stages for task in stage.tasks}
    leaked = [task for task in held if task.id in bench.tasks or question(task) in asked]
    yield f"{len(leaked)} of {len(held)} held-out tasks occur in training"
    if leaked:
        share, text = len(leaked) / len(held), f"for example {question(leaked[0])[:80]!r}"
        summary = f"{len(leaked)} of {len(held)} held-out tasks are trained on: held-out accuracy can't be believed."
        yield bench.found("data.leak", CRITICAL if share > 0.01 else WARNING, summary, text, share)


@probe("order", finds=["data.order"])
def order(bench: Bench) -> Answer:
    """Draw a whole epoch of each stage, and correlate difficulty and kind with position."""
    for number, stage in enumerate(bench.pool.stages):
        drawn, _ = bench.pool.draw(stage.start, len(stage.tasks), Cursor(stage=number))
        check = check_order([task for task, _ in drawn])
        yield f"{'; ' if number else ''}{check.figure}"
        if not check.passed:
            summary = f"Training draws its tasks in an order of difficulty or kind: {check.figure}."
            yield bench.found("data.order", WARNING, summary, check.figure)


@probe("schedule", finds=["optimizer.schedule"])
def schedule(bench: Bench) -> Answer:
    """Compare Σ lr over the planned steps with a constant rate."""
    learning = bench.config.learning
    rates = [bench.learner.rate(step) for step in range(1, learning.steps + 1)]
    share = sum(rates) / (learning.lr * learning.steps)
    yield f"Σ lr is {share:.0%} of {learning.steps} steps at {learning.lr:g} (largest {max(rates):.2g})"
    if share < 0.3:
        summary = f"The schedule leaves {share:.0%} of the learning rate: warm-up or decay eats the run."
        text = f"Σ lr = {sum(rates):.2g}; the last is {rates[-1]:.2g}"
        yield bench.found("optimizer.schedule", WARNING, summary, text, share)
    elif learning.warmup > 0.5 * learning.steps:
        summary = f"The warm-up takes {learning.warmup} of {learning.steps} steps: most of the run learns too slowly."
        yield bench.found("optimizer.schedule", WARNING, summary, f"Σ lr is {share:.0%} of a constant rate's", share)


@probe("prompts", finds=["context.prompt-truncated"])
def prompts(bench: Bench) -> Answer:
    """Render prompts of 200 training tasks, and count rollouts that fill the context. A long prompt is never cut."""
    s, rollouts = bench.config.sampling, bench.rollouts
    lengths = [len(bench.renderer.first(task.messages, bench.tools)) for task in bench.stage.tasks[:200]]
    limit = min(s.max_prompt or s.context, s.context - 1)
    over = sum(length > limit for length in lengths)
    full = sum(r.ended is Ending.CONTEXT_FULL and r.reward is not None for r in rollouts)
    yield f"the longest of {len(lengths)} prompts has {max(lengths)} tokens of {limit}; {over} do not fit, "
    yield f"{full} of {len(rollouts)} rollouts fill the context"
    if over:
        share, text = over / len(lengths), f"the longest has {max(lengths)} tokens"
        severity = CRITICAL if share > 0.5 else WARNING if share > 0.01 else NOTE
        summary = f"{over} of {len(lengths)} prompts are longer than {limit} tokens and can't be played."
        yield bench.found("context.prompt-truncated", severity, summary, text, share)
