"""Probes of tasks and limits: gold answers, repeated and leaked tasks, their order, the schedule,
prompt lengths.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from uptrend.doctor.answers import fix_of
from uptrend.doctor.check import CRITICAL, NOTE, WARNING
from uptrend.doctor.probes.bench import Bench, make_evidence
from uptrend.doctor.probes.probe import Answer, probe, require
from uptrend.records import Ending, Finding, Fix, RewardOutOfBounds, Rollout, Task, boundary_of
from uptrend.tasks.answers import Form, draw_every_class, forms_of, plain_question
from uptrend.tasks.data import Data
from uptrend.tasks.pool import Cursor
from uptrend.tasks.proof import (
    CRITICAL_REJECTED_SHARE,
    HasVariants,
    Remedy,
    ScoredPlay,
    ScoredTask,
    describe_rejections,
    earnings_of,
    explain_rejections,
    furthest_outside,
    judge_form,
    paid_wrong,
    play_scripts,
    split_golds,
    taskset_for_proof,
    try_task,
)
from uptrend.tasks.rewards import READY_NAMES, Undecided
from uptrend.tasks.taskset import Taskset, say
from uptrend.tasks.validate import judge_order
from uptrend.training.warmstart import why_left_out

# Tasks whose gold answers are played; half of them held out.
GOLD_TASKS = 50
HELD_OUT_TASKS = 25
# Tasks on which an answer is tried in other forms: 6 times 15 forms, where nothing is accepted.
# Fewer show nothing.
FORM_TASKS = 6
MIN_FORM_TASKS = 5
# Share of wrong answers that earn the maximum from which on it is critical; or as much as gold if
# the maximum is not stated: a reward of unknown bounds may pay for more than the answer.
CRITICAL_PAID_SHARE = 0.05
CRITICAL_PAID_SHARE_UNBOUNDED = 0.4
# Share of gold answers, or of prompts, from which on a fault is critical. A few rows of a dataset
# may be odd.
CRITICAL_FAULTY_SHARE = 0.5
# Share of prompts that are too long from which on it is more than a note.
WARNING_LONG_PROMPT_SHARE = 0.01
# Tasks whose cheating answers are scored, and answers of the model that are scored again, for their
# bounds.
CHEATED_TASKS = 8
REPLAYED_ROLLOUTS = 32
RENDERED_PROMPTS = 200
# Times the timeout that is proposed where the expert runs out of time.
TIMEOUT_FACTOR = 4
# Pieces of evidence, characters of a quoted text, and values that a finding lists.
MAX_EXAMPLES = 3
MAX_QUOTED = 60
MAX_QUESTION_QUOTED = 80
MAX_VALUES_LISTED = 8


def try_golds(bench: Bench) -> list[ScoredTask]:
    """Play gold and corrupted answers of 50 tasks, of every class of answers."""
    stage = bench.stage
    heldout = bench.heldout
    n_heldout = min(bench.max_plays(HELD_OUT_TASKS), len(heldout.tasks))
    n_trained = min(bench.max_plays(GOLD_TASKS) - n_heldout, len(stage.tasks))
    generator = random.Random(0)
    scored_tasks: list[ScoredTask] = []
    for tasks, count, taskset in (
        (stage.tasks, n_trained, stage.taskset),
        (heldout.tasks, n_heldout, heldout.taskset),
    ):
        shuffled = generator.sample(tasks, len(tasks))
        for task in draw_every_class(shuffled, lambda task: task.answer, count):
            scored_tasks.append(try_task(taskset_for_proof(taskset), task))
    return scored_tasks


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
    by_source=True,
)
def gold(bench: Bench) -> Answer:
    """Score gold and corrupted answers of 50 tasks, of every class of answers, and gold in the
    model's tokens.
    """
    scored_tasks = bench.compute_once(try_golds)
    accepted, rejected = split_golds(scored_tasks)
    taskset = bench.stage.taskset
    form = None
    if 2 * len(rejected) > len(scored_tasks):
        form = _accepted_form(scored_tasks, taskset)
    if form is not None:
        scored_tasks = [_try_in(form, scored, taskset) for scored in scored_tasks]
        accepted, rejected = split_golds(scored_tasks)
        yield f"written as {form}, "

    is_bounded = all(scored.is_bounded for scored in scored_tasks)
    paid = paid_wrong(accepted, by_maximum=is_bounded)
    n_right = sum(bool(scored.golds) for scored in accepted)
    n_judged = n_right + len(rejected)
    n_corrupted = sum(len(scored.others) for scored in scored_tasks)
    uncalled = _uncalled_rewards(taskset)
    reason = "no answer is known that should earn the most, or should not"
    require(n_judged or n_corrupted, uncalled or reason)
    yield (
        f"{n_right} of {n_judged} gold answers reach the maximum, {len(paid)} of {n_corrupted}"
        f" corrupted ones do{'; ' if uncalled else ''}{uncalled}"
    )

    yield from _failures(bench, scored_tasks)
    yield from _rejections(bench, accepted, rejected)
    if paid:
        max_share = CRITICAL_PAID_SHARE if is_bounded else CRITICAL_PAID_SHARE_UNBOUNDED
        severity = CRITICAL if len(paid) > max_share * n_corrupted else WARNING
        summary = (
            f"{len(paid)} of {n_corrupted} corrupted answers earn the maximum: the reward can be"
            " had without one."
        )
        evidence = [make_evidence(_describe(task, play)) for task, play in paid[:MAX_EXAMPLES]]
        yield bench.finding("reward.gold-rejected", severity, summary, evidence)
    if n_judged == len(scored_tasks) and not rejected and form is None:
        yield from _gold_in_tokens(bench)


def _uncalled_rewards(taskset: Taskset) -> str:
    """Return which rewards cost money, and are not tested; empty if none does."""
    names = taskset.remote_rewards if isinstance(taskset, Data) else []
    return f"not called, since marked uptrend.remote: {', '.join(names)}" if names else ""


def _rejections(
    bench: Bench, others: Sequence[ScoredTask], rejected: Sequence[ScoredTask]
) -> Answer:
    """Report gold answers that do not earn the most, and a reward that pays them less than wrong
    ones.
    """
    underpaid = [scored for scored in rejected if scored.golds[0].reward]
    if not underpaid:
        return
    scored_tasks = [*others, *rejected]
    accepted = [scored for scored in others if scored.golds]
    n_judged = len(accepted) + len(rejected)
    n_worse = sum(scored.earned < scored.rival for scored in underpaid)
    is_inverted = earnings_of(scored_tasks).is_inverted
    if is_inverted:
        summary = (
            f"Right answers earn less than wrong ones on {n_worse} of {n_judged} tasks: is a sign"
            " flipped?"
        )
    else:
        summary = describe_rejections("The reward", accepted, underpaid)

    # Without bounds, and if no gold is accepted, it may require a form that is not tried here.
    is_bounded = all(scored.is_bounded for scored in scored_tasks)
    is_known = is_bounded or accepted or n_worse
    is_critical = is_known and len(underpaid) > CRITICAL_REJECTED_SHARE * n_judged
    severity = CRITICAL if is_critical else WARNING
    texts = [_describe(scored.task, scored.golds[0]) for scored in underpaid[:MAX_EXAMPLES]]
    texts += _type_of_answer(bench.stage.taskset, underpaid[0].task)
    remedy = None if is_inverted else _explain(accepted, underpaid, bench.stage.taskset)
    if remedy is not None and remedy.example:
        texts.append(remedy.example)
    evidence = [make_evidence(text) for text in texts]
    if is_inverted:
        yield bench.finding("advantage.sign", severity, summary, evidence)
        severity = WARNING
    fix = None if remedy is None else fix_of(remedy, _place_of_reward(bench, remedy))
    yield bench.finding("reward.gold-rejected", severity, summary, evidence, fix=fix)


def _explain(
    accepted: Sequence[ScoredTask], rejected: Sequence[ScoredTask], taskset: Taskset
) -> Remedy | None:
    """Return what to change in the reward, by what else it accepts for an answer that it
    rejects.
    """

    def score(task: Task, texts: Sequence[str]) -> Sequence[ScoredPlay]:
        return play_scripts(taskset, task, map(say, texts))

    is_of_one_text = all(len(tried.golds[0].texts) == 1 for tried in rejected)
    return explain_rejections(accepted, rejected, score if is_of_one_text else None)


def _place_of_reward(bench: Bench, remedy: Remedy) -> str:
    taskset = bench.stage.taskset
    return taskset.place_of_reward(remedy.words) if isinstance(taskset, Data) else ""


def _try_in(form: Form, scored: ScoredTask, taskset: Taskset) -> ScoredTask:
    """Play a task's answers again, written in another form."""
    texts = [scored.task.answer, *(play.last_text for play in scored.others)]
    scripts = [say(form.write(text)) for text in texts]
    gold_play, *other_plays = play_scripts(taskset, scored.task, scripts)
    return ScoredTask(scored.task, [gold_play], other_plays)


def _accepted_form(scored_tasks: Sequence[ScoredTask], taskset: Taskset) -> Form | None:
    """Return the form of an answer in which a reward accepts gold; None if it accepts none."""
    plain_tasks: list[ScoredTask] = []
    for scored in scored_tasks:
        if scored.golds and scored.golds[0].texts == ((scored.task.answer,),):
            plain_tasks.append(scored)
    plain_tasks = plain_tasks[:FORM_TASKS]
    if len(plain_tasks) < MIN_FORM_TASKS:
        return None
    # The first form is the plain one, which was played already.
    _, *other_forms = forms_of([scored.task.answer for scored in plain_tasks])
    for form in other_forms:
        if judge_form([_try_in(form, scored, taskset) for scored in plain_tasks]):
            return form
    return None


def _type_of_answer(taskset: Taskset, task: Task) -> list[str]:
    """Return what a user's function gets as the answer if that is not a text; nothing if it is."""
    if not isinstance(taskset, Data) or "row" not in task.data:
        return []
    has_own_function = not set(taskset.options.reward) <= set(READY_NAMES)
    if not has_own_function:
        return []
    _, answer = taskset.columns_of(task)
    if isinstance(answer, str):
        return []
    quoted = repr(answer)[:MAX_QUOTED]
    return [f"the function gets this row's answer as {type(answer).__name__}: {quoted}"]


def _failures(bench: Bench, scored_tasks: Sequence[ScoredTask]) -> Answer:
    """Report gold answers that a reward can't judge, and answers that it fails on, with the most
    frequent exception.
    """
    golds = [play for scored in scored_tasks for play in scored.golds]
    yield from _failures_among(bench, golds, "reward.never-computed", is_undecided=True)
    plays = _all_plays(scored_tasks)
    yield from _failures_among(bench, plays, "reward.error-scored", is_undecided=False)


def _failures_among(
    bench: Bench, plays: Sequence[ScoredPlay], id: str, *, is_undecided: bool
) -> Answer:
    """Report plays without a reward, either because it is undecided or because it failed."""
    errors: list[str] = []
    for play in plays:
        # A reward that leaves its bounds is another fault, which `bounds` finds.
        if play.reward is not None or isinstance(play.error, RewardOutOfBounds):
            continue
        if isinstance(play.error, Undecided) is is_undecided:
            errors.append(play.last_text)
    if not errors:
        return
    share = len(errors) / len(plays)
    text, count = Counter(errors).most_common(1)[0]
    summary = (
        f"The reward gives no number for {len(errors)} of {len(plays)} answers: {count} times"
        f" {text}."
    )
    severity = CRITICAL if share > CRITICAL_FAULTY_SHARE else WARNING
    yield bench.finding(id, severity, summary, text, share)


def _all_plays(scored_tasks: Sequence[ScoredTask]) -> list[ScoredPlay]:
    plays: list[ScoredPlay] = []
    for scored in scored_tasks:
        plays += scored.golds
        plays += scored.others
    return plays


@probe("bounds", finds=["reward.out-of-bounds"], by_source=True)
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
    plays = _all_plays(bench.compute_once(try_golds))
    for task in bench.stage.tasks[: bench.max_plays(CHEATED_TASKS)]:
        plays += play_scripts(taskset, task, taskset.cheaters(task))
    unscored: list[Rollout] = []
    for rollout in bench.played:
        if boundary_of(rollout.error) == "score" and rollout.task in bench.tasks:
            unscored.append(rollout)
    plays += bench.replay(unscored[: bench.max_plays(REPLAYED_ROLLOUTS)])
    errors = [play.error for play in plays if isinstance(play.error, RewardOutOfBounds)]
    yield f"{len(errors)} of {len(plays)} answers earn more or less than the bounds"
    if not errors:
        return

    furthest = furthest_outside(errors)
    summary = f"{furthest.sentence}: {len(errors)} of {len(plays)} answers could not be scored."
    wider_bounds = taskset.bounds_that_hold(errors)
    in_python = str(wider_bounds).replace("[", "(").replace("]", ")")
    fix = Fix(
        f"Set tasks.bounds = {wider_bounds} in the recipe, or bounds={in_python} in uptrend.train:"
        " the least and the most that the reward pays.",
        {"uptrend": {"tasks.bounds": wider_bounds}},
    )
    values = sorted({error.value for error in errors})
    listed = ", ".join(f"{value:.9g}" for value in values[:MAX_VALUES_LISTED])
    more = ", …" if len(values) > MAX_VALUES_LISTED else ""
    text = f"outside [{furthest.low:.9g}, {furthest.high:.9g}] it pays {listed}{more}"
    evidence = make_evidence(text, furthest.value)
    yield bench.finding("reward.out-of-bounds", CRITICAL, summary, [evidence], fix=fix)


def _describe(task: Task, play: ScoredPlay) -> str:
    contents = [message.content for message in task.messages if message.role != "system"]
    last_content = contents[-1] if contents else ""
    question_end = last_content[-MAX_QUOTED:]
    if play.reward is None:
        return f"{question_end!r} answered '' failed: {play.last_text}"
    return (
        f"{question_end!r} answered {play.last_text[-MAX_QUOTED:]!r} earned {play.total:g} of"
        f" {play.reward.high:g}"
    )


def _gold_in_tokens(bench: Bench) -> Answer:
    """Judge gold in the model's tokens: a tokenizer may change the words, and limits may be too
    tight for them.
    """
    demonstrations = bench.demonstrations
    exhausted = list(_exhausted_limits(bench))
    if exhausted:
        yield from exhausted
        return

    sampling = bench.config.sampling
    # A weak retriever bounds the expert's reward too.
    is_expert_limited = isinstance(bench.stage.taskset, HasVariants)
    wrong: list[Rollout] = []
    n_long = 0
    n_faulty = 0
    longest_turn = 0
    for rollout in demonstrations:
        n_tokens = _longest_turn(rollout)
        longest_turn = max(longest_turn, n_tokens)
        is_long = n_tokens > sampling.max_tokens
        is_wrong = _is_wrong(rollout, is_expert_limited)
        if is_wrong:
            wrong.append(rollout)
        n_long += is_long
        n_faulty += is_long or is_wrong
    n_demonstrations = len(demonstrations)
    yield (
        f"; {n_demonstrations - n_faulty} of {n_demonstrations} can be said in the model's tokens"
    )
    if not n_faulty:
        return

    share = n_faulty / n_demonstrations
    fix = None
    if wrong and all(boundary_of(rollout.error) == "prompt" for rollout in wrong):
        id = "context.prompt-truncated"
        text = str(wrong[0].error)
        summary = f"{share:.0%} of prompts can't be played: they exceed the limits of [sampling]."
    elif n_long or any(rollout.error and "sampling." in rollout.error for rollout in wrong):
        id = "context.completion-truncated"
        text = "; ".join(why_left_out(demonstrations, sampling)) or str(wrong[0].error)
        summary = f"{share:.0%} of gold answers do not fit into the limits of [sampling]: {text}."
        if n_long:
            fix = bench.more_tokens(longest_turn)
    else:
        id = "reward.gold-rejected"
        text = f"The expert's words became {wrong[0].messages[-1].content!r}"
        summary = f"{share:.0%} of gold answers are wrong once they are said in the model's tokens."
    severity = CRITICAL if share > CRITICAL_FAULTY_SHARE else WARNING
    yield bench.finding(id, severity, summary, text, fix=fix)


def _exhausted_limits(bench: Bench) -> Answer:
    """Report the first limit that the expert runs out of on most tasks."""
    sampling = bench.config.sampling
    n_demonstrations = len(bench.demonstrations)
    longer_timeout = Fix(
        "Give rollouts as many seconds as the task takes.",
        {"uptrend": {"sampling.rollout_timeout": TIMEOUT_FACTOR * sampling.rollout_timeout}},
    )
    for ending, name, setting, fix in (
        (
            Ending.TURN_LIMIT,
            "turns",
            f"sampling.max_turns = {sampling.max_turns} is too few",
            bench.more_turns,
        ),
        (
            Ending.TIME_LIMIT,
            "time",
            f"sampling.rollout_timeout = {sampling.rollout_timeout:g} is too short",
            longer_timeout,
        ),
    ):
        n_scored = 0
        n_exhausted = 0
        for rollout in bench.demonstrations:
            if rollout.reward is not None:
                n_scored += 1
                n_exhausted += rollout.ended is ending and not rollout.reward.is_best
        if n_exhausted > CRITICAL_FAULTY_SHARE * n_scored:
            n_within = n_demonstrations - n_exhausted
            yield f"; {n_within} of {n_demonstrations} end within the {name}"
            text = f"the expert runs out of {name} in {n_exhausted} of {n_demonstrations} tasks"
            yield bench.finding(
                "context.completion-truncated",
                CRITICAL,
                f"{setting}: {text}.",
                text,
                n_exhausted / n_demonstrations,
                fix=fix,
            )
            return


def _longest_turn(rollout: Rollout) -> int:
    """Return the most tokens that the model's side says in one turn of a rollout."""
    longest = 0
    for sequence in rollout.sequences:
        _, counts = np.unique(sequence.turns[sequence.sampled], return_counts=True)
        longest = max(longest, int(counts.max(initial=0)))
    return longest


def _is_wrong(rollout: Rollout, is_expert_limited: bool) -> bool:
    """Return True if a rollout of the expert failed, or is not right although it should be."""
    if rollout.reward is None:
        return True
    # Without bounds it is not known what is right.
    has_bounds = not math.isnan(rollout.reward.high)
    return has_bounds and not rollout.reward.correct and not is_expert_limited


def repeated_families(taskset: Taskset) -> frozenset[str]:
    """Return the families whose examples are one task, as their taskset declares."""
    return getattr(taskset, "repeated", frozenset())


def question(task: Task) -> str:
    """Return a task's question without instructions, case, spaces and irrelevant punctuation."""
    contents = [message.content for message in task.messages if message.role != "system"]
    return plain_question(" ".join(contents) or task.messages[0].content)


# Share of different questions among the tasks below which a set repeats itself, and below which it
# is mostly repeats.
MIN_UNIQUE_SHARE = 0.9
CRITICAL_UNIQUE_SHARE = 0.5


@probe("repeats", finds=["data.duplicates", "data.batch-exceeds"], by_source=True)
def repeats(bench: Bench) -> Answer:
    """Count different questions, in the pool and in the step that was drawn."""
    findings: list[Finding] = []
    lowest_share = 1.0
    for stage in bench.pool.stages:
        repeated = repeated_families(stage.taskset)
        declared = {task.family for task in stage.tasks} & repeated
        if declared:
            summary = (
                f"Examples of {', '.join(sorted(declared))} repeat one task by declaration,"
                " held-out ones too."
            )
            text = "no generator makes different examples"
            findings.append(bench.finding("data.duplicates", NOTE, summary, text, 1.0))

        other_tasks = [task for task in stage.tasks if task.family not in declared]
        n_unique = len({question(task) for task in other_tasks})
        share = n_unique / len(other_tasks) if other_tasks else 1.0
        lowest_share = min(lowest_share, share)
        if share < MIN_UNIQUE_SHARE:
            summary = f"Of {len(other_tasks)} training tasks only {n_unique} are different."
            severity = CRITICAL if share < CRITICAL_UNIQUE_SHARE else WARNING
            text = f"{share:.0%} are unique"
            findings.append(bench.finding("data.duplicates", severity, summary, text, share))

    n_groups, n_repeated = _repeats_in_step(bench)
    yield (
        f"{lowest_share:.1%} of training tasks are unique; {n_repeated} of {n_groups} groups repeat"
        " a task"
    )
    yield from findings
    groups = bench.step_groups
    n_tasks = min(len(stage.tasks) for stage in bench.pool.stages)
    # Repeats of a set that repeats itself were reported above.
    is_repeated_by_draw = n_repeated and lowest_share >= MIN_UNIQUE_SHARE
    if groups > n_tasks or is_repeated_by_draw:
        summary = f"A step draws the same task more than once: {groups} groups of {n_tasks} tasks."
        text = f"{n_repeated} of {n_groups} groups repeat another's task"
        yield bench.finding("data.batch-exceeds", WARNING, summary, text, n_repeated)


def _repeats_in_step(bench: Bench) -> tuple[int, int]:
    """Return the number of groups in the step that was drawn, and of those that repeat another's
    task.
    """
    families = repeated_families(bench.stage.taskset)
    task_by_group = {rollout.group: rollout.task for rollout in bench.played}
    # By question, and by id where the question is not known or is the same by declaration.
    names: set[str] = set()
    for id in task_by_group.values():
        name = id
        if id in bench.tasks:
            task, _ = bench.tasks[id]
            if task.family not in families:
                name = question(task)
        names.add(name)
    return len(task_by_group), len(task_by_group) - len(names)


# Share of held-out tasks that are trained on above which held-out accuracy means nothing.
CRITICAL_LEAKED_SHARE = 0.01


@probe("leak", finds=["data.leak"], by_source=True)
def leak(bench: Bench) -> Answer:
    """Compare held-out tasks with all training tasks, by id and by wording."""
    declared = repeated_families(bench.heldout.taskset)
    heldout_tasks = [task for task in bench.heldout.tasks if task.family not in declared]
    require(heldout_tasks, "all examples repeat one task by declaration")
    trained: set[str] = set()
    for stage in bench.pool.stages:
        trained.update(question(task) for task in stage.tasks)
    leaked: list[Task] = []
    for task in heldout_tasks:
        if task.id in bench.tasks or question(task) in trained:
            leaked.append(task)
    yield f"{len(leaked)} of {len(heldout_tasks)} held-out tasks occur in training"
    if not leaked:
        return
    share = len(leaked) / len(heldout_tasks)
    severity = CRITICAL if share > CRITICAL_LEAKED_SHARE else WARNING
    summary = (
        f"{len(leaked)} of {len(heldout_tasks)} held-out tasks are trained on: held-out accuracy"
        " can't be believed."
    )
    text = f"for example {question(leaked[0])[:MAX_QUESTION_QUOTED]!r}"
    yield bench.finding("data.leak", severity, summary, text, share)


@probe("order", finds=["data.order"], by_source=True)
def order(bench: Bench) -> Answer:
    """Draw a whole epoch of each stage, and correlate difficulty and kind with position."""
    for number, stage in enumerate(bench.pool.stages):
        drawn, _ = bench.pool.draw(stage.start, len(stage.tasks), Cursor(stage=number))
        check = judge_order([task for task, _ in drawn])
        separator = "; " if number else ""
        yield f"{separator}{check.figure}"
        if not check.passed:
            summary = f"Training draws its tasks in an order of difficulty or kind: {check.figure}."
            yield bench.finding("data.order", WARNING, summary, check.figure)


# Σ lr as a share of a constant rate's that a schedule must leave, and share of the steps that a
# warm-up may take.
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
        text = f"Σ lr is {share:.0%} of a constant rate's"
        yield bench.finding("optimizer.schedule", WARNING, summary, text, share)


@probe("prompts", finds=["context.prompt-truncated"], by_source=True)
def prompts(bench: Bench) -> Answer:
    """Render prompts of 200 training tasks, and count rollouts that fill the context. A long prompt
    is never cut.
    """
    sampling = bench.config.sampling
    lengths: list[int] = []
    for task in bench.stage.tasks[:RENDERED_PROMPTS]:
        lengths.append(len(bench.renderer.first_prompt(task.messages, bench.tools)))
    # A prompt that fills the context leaves no token to sample.
    limit = min(sampling.max_prompt or sampling.context, sampling.context - 1)
    n_long = sum(length > limit for length in lengths)
    n_full = 0
    for rollout in bench.rollouts:
        n_full += rollout.ended is Ending.CONTEXT_FULL and rollout.reward is not None
    yield (
        f"the longest of {len(lengths)} prompts has {max(lengths)} tokens of {limit}; {n_long} do"
        " not fit, "
    )
    yield f"{n_full} of {len(bench.rollouts)} rollouts fill the context"
    if not n_long:
        return
    share = n_long / len(lengths)
    if share > CRITICAL_FAULTY_SHARE:
        severity = CRITICAL
    elif share > WARNING_LONG_PROMPT_SHARE:
        severity = WARNING
    else:
        severity = NOTE
    summary = (
        f"{n_long} of {len(lengths)} prompts are longer than {limit} tokens and can't be played."
    )
    text = f"the longest has {max(lengths)} tokens"
    yield bench.finding("context.prompt-truncated", severity, summary, text, share)
