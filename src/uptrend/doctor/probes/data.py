"""Probes of tasks and limits: gold answers, repeated and leaked tasks, their order, the schedule,
prompt lengths.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from uptrend.doctor.check import CRITICAL, NOTE, WARNING
from uptrend.doctor.probes.bench import Bench, make_evidence
from uptrend.doctor.probes.probe import Answer, probe, require
from uptrend.records import Ending, Finding, Fix, RewardOutOfBounds, Task, boundary_of
from uptrend.tasks.answers import Form, draw_every_class, forms_of, plain_question
from uptrend.tasks.data import Data
from uptrend.tasks.pool import Cursor
from uptrend.tasks.proof import (
    CRITICAL_REJECTED_SHARE,
    HasVariants,
    ScoredPlay,
    ScoredTask,
    describe_rejections,
    earnings_of,
    furthest_outside,
    judge_form,
    paid_wrong,
    play_scripts,
    proving,
    split_golds,
    try_task,
)
from uptrend.tasks.rewards import READY_NAMES, Undecided
from uptrend.tasks.taskset import Taskset, say
from uptrend.tasks.validate import order as check_order
from uptrend.training.warmstart import why_left_out

# Tasks whose gold answers are played; half of them held out.
GOLD_TASKS = 50
HELD_OUT_TASKS = 25
# Tasks on which an answer is tried in other forms: 6 times 15 forms, where nothing is accepted.
# Fewer show nothing.
FORM_TASKS = 6
MIN_FORM_TASKS = 5
# Shares of wrong answers that earn the maximum, or as much as gold where nobody said what the
# maximum is: a reward of unknown bounds may pay for more than the answer.
CRITICAL_PAID_SHARE = 0.05
CRITICAL_PAID_SHARE_UNBOUNDED = 0.4


def try_golds(bench: Bench) -> list[ScoredTask]:
    """Play gold and corrupted answers of 50 tasks, of every class of answers."""
    stage = bench.stage
    held_out = bench.heldout
    evaluated = min(bench.max_plays(HELD_OUT_TASKS), len(held_out.tasks))
    trained = min(bench.max_plays(GOLD_TASKS) - evaluated, len(stage.tasks))
    generator = random.Random(0)
    tried = []
    for tasks, count, taskset in (
        (stage.tasks, trained, stage.taskset),
        (held_out.tasks, evaluated, held_out.taskset),
    ):
        shuffled = generator.sample(tasks, len(tasks))
        for task in draw_every_class(shuffled, lambda task: task.answer, count):
            tried.append(try_task(proving(taskset), task))
    return tried


@probe(
    "gold",
    finds=[
        "reward.gold-rejected",
        "advantage.sign",
        "reward.error-scored",
        "reward.never-computed",
        "context.completion-truncated",
        "context.prompt-truncated",
    ],
)
def gold(bench: Bench) -> Answer:
    """Score gold and corrupted answers of 50 tasks, of every class of answers, and gold in the
    model's tokens.
    """
    tried = bench.compute_once(try_golds)
    accepted, rejected = split_golds(tried)
    form = None
    if 2 * len(rejected) > len(tried):
        form = _accepted_form(tried, bench.stage.taskset)
    if form is not None:
        tried = [_try_in(form, each, bench.stage.taskset) for each in tried]
        accepted, rejected = split_golds(tried)
        yield f"written as {form}, "
    is_bounded = all(each.is_bounded for each in tried)
    paid = paid_wrong(accepted, by_maximum=is_bounded)
    right = sum(bool(each.golds) for each in accepted)
    judged = right + len(rejected)
    corrupted = sum(len(each.others) for each in tried)
    require(judged or corrupted, "no answer is known that should earn the most, or should not")
    yield (
        f"{right} of {judged} gold answers reach the maximum, {len(paid)} of {corrupted} corrupted"
        " ones do"
    )
    yield from _failures(bench, tried)
    yield from _rejections(bench, accepted, rejected)
    if paid:
        limit = CRITICAL_PAID_SHARE if is_bounded else CRITICAL_PAID_SHARE_UNBOUNDED
        summary = (
            f"{len(paid)} of {corrupted} corrupted answers earn the maximum: the reward can be had"
            " without one."
        )
        evidence = [make_evidence(_describe(*each)) for each in paid[:3]]
        severity = CRITICAL if len(paid) > limit * corrupted else WARNING
        yield bench.finding("reward.gold-rejected", severity, summary, evidence)
    if judged == len(tried) and not rejected and form is None:
        yield from _gold_in_tokens(bench)


def _rejections(
    bench: Bench, others: Sequence[ScoredTask], rejected: Sequence[ScoredTask]
) -> Answer:
    """Report gold answers that do not earn the most, and a reward that pays them less than wrong
    ones.
    """
    low = [each for each in rejected if each.golds[0].reward]
    if not low:
        return
    tried = [*others, *rejected]
    accepted = [each for each in others if each.golds]
    judged = len(accepted) + len(rejected)
    worse = sum(each.earned < each.rival for each in low)
    is_inverted = earnings_of(tried).is_inverted
    summary = describe_rejections("The reward", accepted, low)
    if is_inverted:
        summary = (
            f"Right answers earn less than wrong ones on {worse} of {judged} tasks: is a sign"
            " flipped?"
        )
    # Without bounds, and where no gold is accepted, it may want words that nobody knows here.
    is_known = all(each.is_bounded for each in tried) or accepted or worse
    severity = CRITICAL if is_known and len(low) > CRITICAL_REJECTED_SHARE * judged else WARNING
    evidence = [make_evidence(_describe(each.task, each.golds[0])) for each in low[:3]]
    evidence += [make_evidence(text) for text in _typed_answer(bench.stage.taskset, low[0].task)]
    if is_inverted:
        yield bench.finding("advantage.sign", severity, summary, evidence)
        severity = WARNING
    yield bench.finding("reward.gold-rejected", severity, summary, evidence)


def _try_in(form: Form, tried: ScoredTask, taskset: Taskset) -> ScoredTask:
    """Play a task's answers again, written in another form."""
    texts = [tried.task.answer, *(play.last_text for play in tried.others)]
    first, *others = play_scripts(taskset, tried.task, [say(form.write(text)) for text in texts])
    return ScoredTask(tried.task, [first], others)


def _accepted_form(tried: Sequence[ScoredTask], taskset: Taskset) -> Form | None:
    """Return the form of an answer in which a reward accepts gold; None where it does in none."""
    plain = [
        each for each in tried if each.golds and each.golds[0].texts == ((each.task.answer,),)
    ][:FORM_TASKS]
    if len(plain) < MIN_FORM_TASKS:
        return None
    for form in forms_of([each.task.answer for each in plain])[1:]:  # the plain one was tried
        if judge_form([_try_in(form, each, taskset) for each in plain]):
            return form
    return None


def _typed_answer(taskset: Taskset, task: Task) -> list[str]:
    """Say what a function of one's own is given as the answer where that is no text; nothing where
    it is.
    """
    if (
        not isinstance(taskset, Data)
        or "row" not in task.data
        or set(taskset.options.reward) <= set(READY_NAMES)
    ):
        return []
    _, answer = taskset.columns_of(task)
    if isinstance(answer, str):
        return []
    return [f"the function gets this row's answer as {type(answer).__name__}: {answer!r:.60}"]


def _failures(bench: Bench, tried: Sequence[ScoredTask]) -> Answer:
    """Report gold answers that a reward can't judge, and answers that it fails on, with the
    commonest exception.
    """
    golds = [play for each in tried for play in each.golds]
    everything = [play for each in tried for play in (*each.golds, *each.others)]
    for id, plays, is_undecided in (
        ("reward.never-computed", golds, True),
        ("reward.error-scored", everything, False),
    ):
        # A reward that leaves its bounds is another fault, which `bounds` finds.
        failed = [
            play
            for play in plays
            if play.reward is None and not isinstance(play.error, RewardOutOfBounds)
        ]
        texts = [
            play.last_text for play in failed if isinstance(play.error, Undecided) is is_undecided
        ]
        if texts:
            share = len(texts) / len(plays)
            text, count = Counter(texts).most_common(1)[0]
            summary = (
                f"The reward gives no number for {len(texts)} of {len(plays)} answers: {count}"
                f" times {text}."
            )
            yield bench.finding(id, CRITICAL if share > 0.5 else WARNING, summary, text, share)


@probe("bounds", finds=["reward.out-of-bounds"])
def bounds(bench: Bench) -> Answer:
    """Compare what gold, corrupted, cheating and the model's answers earn with the bounds that the
    reward states.
    """
    taskset = bench.stage.taskset
    require(
        isinstance(taskset, Data) and taskset.options.bounds,
        "no function of one's own states bounds",
    )
    assert isinstance(taskset, Data)
    plays = [play for each in bench.compute_once(try_golds) for play in (*each.golds, *each.others)]
    for task in bench.stage.tasks[: bench.max_plays(8)]:
        plays += play_scripts(taskset, task, taskset.cheaters(task))
    failed = [r for r in bench.played if boundary_of(r.error) == "score" and r.task in bench.tasks]
    plays += bench.replay(failed[: bench.max_plays(32)])
    errors = [play.error for play in plays if isinstance(play.error, RewardOutOfBounds)]
    yield f"{len(errors)} of {len(plays)} answers earn more or less than the bounds"
    if not errors:
        return
    furthest = furthest_outside(errors)
    summary = f"{furthest.sentence}: {len(errors)} of {len(plays)} answers could not be scored."
    right = taskset.bounds_that_hold(errors)
    in_python = str(right).replace("[", "(").replace("]", ")")
    way = f"Set tasks.bounds = {right} in the recipe, or bounds={in_python} in uptrend.train"
    fix = Fix(
        f"{way}: the least and the most that the reward pays.", {"uptrend": {"tasks.bounds": right}}
    )
    values = sorted({error.value for error in errors})
    paid = ", ".join(f"{value:.9g}" for value in values[:8]) + ", …" * (len(values) > 8)
    evidence = make_evidence(
        f"outside [{furthest.low:.9g}, {furthest.high:.9g}] it pays {paid}", furthest.value
    )
    yield bench.finding("reward.out-of-bounds", CRITICAL, summary, [evidence], fix=fix)


def _describe(task: Task, play: ScoredPlay) -> str:
    question_end = next((m.content for m in reversed(task.messages) if m.role != "system"), "")[
        -60:
    ]
    if play.reward is None:
        return f"{question_end!r} answered '' failed: {play.last_text}"
    return (
        f"{question_end!r} answered {play.last_text[-60:]!r} earned {play.total:g} of"
        f" {play.reward.high:g}"
    )


def _gold_in_tokens(bench: Bench) -> Answer:
    """Judge gold in the model's tokens: a tokenizer may change the words, and limits may be too
    tight for them.
    """
    shown = bench.demonstrations
    s = bench.config.sampling
    scored = [(r, r.reward) for r in shown if r.reward is not None]
    time = {"sampling.rollout_timeout": 4 * s.rollout_timeout}
    longer = Fix("Give rollouts as many seconds as the task takes.", {"uptrend": time})
    for ending, what, limit, more in (
        (
            Ending.TURN_LIMIT,
            "turns",
            f"sampling.max_turns = {s.max_turns} is too few",
            bench.more_turns,
        ),
        (
            Ending.TIME_LIMIT,
            "time",
            f"sampling.rollout_timeout = {s.rollout_timeout:g} is too short",
            longer,
        ),
    ):
        out = sum(r.ended is ending and not reward.is_best for r, reward in scored)
        if out > 0.5 * len(scored):  # a few rows of a dataset may be odd
            yield f"; {len(shown) - out} of {len(shown)} end within the {what}"
            text = f"the expert runs out of {what} in {out} of {len(shown)} tasks"
            id = "context.completion-truncated"
            yield bench.finding(id, CRITICAL, f"{limit}: {text}.", text, out / len(shown), fix=more)
            return
    turns = [
        [np.unique(t.turns[t.sampled], return_counts=True)[1].max(initial=0) for t in r.sequences]
        for r in shown
    ]
    long = [
        r for r, sizes in zip(shown, turns, strict=True) if max(sizes, default=0) > s.max_tokens
    ]
    # Without bounds nobody said what is right.
    wrong = [
        r for r in shown if r.reward is None or not (r.reward.correct or math.isnan(r.reward.high))
    ]
    if isinstance(bench.stage.taskset, HasVariants):
        wrong = [r for r in wrong if r.reward is None]  # a weak retriever bounds the expert too
    bad = sum(any(r is other for other in (*wrong, *long)) for r in shown)
    yield f"; {len(shown) - bad} of {len(shown)} can be said in the model's tokens"
    if not bad:
        return
    share = bad / len(shown)
    if wrong and all(boundary_of(r.error) == "prompt" for r in wrong):
        id = "context.prompt-truncated"
        text = str(wrong[0].error)
        summary = f"{share:.0%} of prompts can't be played: they exceed the limits of [sampling]."
    elif long or any(r.error and "sampling." in r.error for r in wrong):
        id = "context.completion-truncated"
        text = "; ".join(why_left_out(shown, s)) or str(wrong[0].error)
        summary = f"{share:.0%} of gold answers do not fit into the limits of [sampling]: {text}."
    else:
        id = "reward.gold-rejected"
        text = f"The expert's words became {wrong[0].messages[-1].content!r}"
        summary = f"{share:.0%} of gold answers are wrong once they are said in the model's tokens."
    longest = max((max(sizes, default=0) for sizes in turns), default=0)
    fix = (
        bench.more_tokens(int(longest))
        if id == "context.completion-truncated" and longest > s.max_tokens
        else None
    )
    yield bench.finding(id, CRITICAL if share > 0.5 else WARNING, summary, text, fix=fix)


def repeated_families(taskset: Taskset) -> frozenset[str]:
    """Return the families whose examples are one task, as their taskset declares."""
    return getattr(taskset, "repeated", frozenset())


def question(task: Task) -> str:
    """Return a task's question without instructions, case, spaces and punctuation that carry
    nothing.
    """
    said = (
        " ".join(m.content for m in task.messages if m.role != "system") or task.messages[0].content
    )
    return plain_question(said)


# Different questions / tasks below which a set repeats itself, and is mostly repeats.
MIN_UNIQUE_SHARE = 0.9
CRITICAL_UNIQUE_SHARE = 0.5


@probe("repeats", finds=["data.duplicates", "data.batch-exceeds"])
def repeats(bench: Bench) -> Answer:
    """Count different questions, in the pool and in the step that was drawn."""
    findings = list[Finding]()
    worst = 1.0
    for stage in bench.pool.stages:
        declared = {task.family for task in stage.tasks} & repeated_families(stage.taskset)
        if declared:
            summary = (
                f"Examples of {', '.join(sorted(declared))} repeat one task by declaration,"
                " held-out ones too."
            )
            findings.append(
                bench.finding(
                    "data.duplicates", NOTE, summary, "no generator makes different examples", 1.0
                )
            )
        told_apart = [task for task in stage.tasks if task.family not in declared]
        unique = len({question(task) for task in told_apart})
        share = unique / len(told_apart) if told_apart else 1.0
        worst = min(worst, share)
        if share < MIN_UNIQUE_SHARE:
            summary = f"Of {len(told_apart)} training tasks only {unique} are different."
            severity = CRITICAL if share < CRITICAL_UNIQUE_SHARE else WARNING
            findings.append(
                bench.finding(
                    "data.duplicates", severity, summary, f"{share:.0%} are unique", share
                )
            )
    drawn = {r.group: r.task for r in bench.played}
    families = repeated_families(bench.stage.taskset)
    known = {task: bench.tasks[task][0] for task in drawn.values() if task in bench.tasks}
    asked = {
        question(known[task]) if task in known and known[task].family not in families else task
        for task in drawn.values()
    }
    repeated = len(drawn) - len(asked)
    yield (
        f"{worst:.1%} of training tasks are unique; {repeated} of {len(drawn)} groups repeat a task"
    )
    yield from findings
    groups = bench.config.sampling.groups
    tasks = min(len(s.tasks) for s in bench.pool.stages)
    if groups > tasks or (repeated and worst >= MIN_UNIQUE_SHARE):
        summary = f"A step draws the same task more than once: {groups} groups of {tasks} tasks."
        text = f"{repeated} of {len(drawn)} groups repeat another's task"
        yield bench.finding("data.batch-exceeds", WARNING, summary, text, repeated)


# Share of held-out tasks that are trained on above which their accuracy means nothing.
CRITICAL_LEAKED_SHARE = 0.01


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
        share = len(leaked) / len(held)
        text = f"for example {question(leaked[0])[:80]!r}"
        summary = (
            f"{len(leaked)} of {len(held)} held-out tasks are trained on: held-out accuracy can't"
            " be believed."
        )
        yield bench.finding(
            "data.leak",
            CRITICAL if share > CRITICAL_LEAKED_SHARE else WARNING,
            summary,
            text,
            share,
        )


@probe("order", finds=["data.order"])
def order(bench: Bench) -> Answer:
    """Draw a whole epoch of each stage, and correlate difficulty and kind with position."""
    for number, stage in enumerate(bench.pool.stages):
        drawn, _ = bench.pool.draw(stage.start, len(stage.tasks), Cursor(stage=number))
        check = check_order([task for task, _ in drawn])
        yield f"{'; ' if number else ''}{check.figure}"
        if not check.passed:
            summary = f"Training draws its tasks in an order of difficulty or kind: {check.figure}."
            yield bench.finding("data.order", WARNING, summary, check.figure)


# Σ lr / that of a constant rate that a schedule must leave, and share of the steps that a warm-up
# may take.
MIN_RATE_SHARE = 0.3
MAX_WARM_UP_SHARE = 0.5


@probe("schedule", finds=["optimizer.schedule"])
def schedule(bench: Bench) -> Answer:
    """Compare Σ lr over the planned steps with a constant rate."""
    learning = bench.config.learning
    rates = [bench.learner.rate(step) for step in range(1, learning.steps + 1)]
    share = sum(rates) / (learning.lr * learning.steps)
    yield (
        f"Σ lr is {share:.0%} of {learning.steps} steps at {learning.lr:g} (largest"
        f" {max(rates):.2g})"
    )
    if share < MIN_RATE_SHARE:
        summary = (
            f"The schedule leaves {share:.0%} of the learning rate: warm-up or decay eats the run."
        )
        text = f"Σ lr = {sum(rates):.2g}; the last is {rates[-1]:.2g}"
        yield bench.finding("optimizer.schedule", WARNING, summary, text, share)
    elif learning.warmup > MAX_WARM_UP_SHARE * learning.steps:
        summary = (
            f"The warm-up takes {learning.warmup} of {learning.steps} steps: most of the run learns"
            " too slowly."
        )
        yield bench.finding(
            "optimizer.schedule",
            WARNING,
            summary,
            f"Σ lr is {share:.0%} of a constant rate's",
            share,
        )


@probe("prompts", finds=["context.prompt-truncated"])
def prompts(bench: Bench) -> Answer:
    """Render prompts of 200 training tasks, and count rollouts that fill the context. A long prompt
    is never cut.
    """
    s = bench.config.sampling
    rollouts = bench.rollouts
    lengths = [
        len(bench.renderer.first_prompt(task.messages, bench.tools))
        for task in bench.stage.tasks[:200]
    ]
    limit = min(s.max_prompt or s.context, s.context - 1)
    over = sum(length > limit for length in lengths)
    full = sum(r.ended is Ending.CONTEXT_FULL and r.reward is not None for r in rollouts)
    yield (
        f"the longest of {len(lengths)} prompts has {max(lengths)} tokens of {limit}; {over} do not"
        " fit, "
    )
    yield f"{full} of {len(rollouts)} rollouts fill the context"
    if over:
        share = over / len(lengths)
        text = f"the longest has {max(lengths)} tokens"
        severity = CRITICAL if share > 0.5 else WARNING if share > 0.01 else NOTE
        summary = (
            f"{over} of {len(lengths)} prompts are longer than {limit} tokens and can't be played."
        )
        yield bench.finding("context.prompt-truncated", severity, summary, text, share)
