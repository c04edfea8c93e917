"""Probes of scoring: the same again, side by side, by cheaters, and whether a reward is ever
paid.

n = rollout.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from uptrend.doctor.answers import UNFINISHED_ENDINGS
from uptrend.doctor.check import CRITICAL, SIGNAL, WARNING
from uptrend.doctor.probes.bench import Bench, Plays, by_group, make_evidence
from uptrend.doctor.probes.probe import Answer, probe, require
from uptrend.records import Basis, Evidence, Message, Reward, Rollout
from uptrend.records.rollout import OVERLONG_PART
from uptrend.tasks.proof import (
    MIN_PAID_CHEATERS_SHARE,
    HasCheaters,
    ScoredPlay,
    pays_cheater,
    play_scripts,
    try_task,
)

# Rollouts that are scored again.
RESCORED_ROLLOUTS = 64
# Rewards that differ by less are the same: sums of parts are rounded.
REWARD_TOLERANCE = 1e-6
# Share of rollouts that earn another reward when they are scored again: above the first it is
# reported, above the second it is noise that drowns the reward.
MIN_UNSURE_SHARE = 0.01
CRITICAL_UNSURE_SHARE = 0.1
# Share of rollouts with a reward on which the scorer fails, above which training must not start.
CRITICAL_FAILED_SHARE = 0.1
# Places by which rewards may be shifted against their rollouts, the likeliest first.
REWARD_SHIFTS = (1, -1, 2, -2)
MAX_EXAMPLES = 3


@probe(
    "rescoring",
    finds=[
        "reward.misaligned",
        "reward.nondeterministic",
        "reward.wrong-length",
        "reward.error-scored",
    ],
    by_source=True,
)
def rescoring(bench: Bench) -> Answer:
    """Score up to 64 rollouts again, twice, and compare with the recorded rewards."""
    yield from _incomplete_groups(bench)

    known = [r for r in bench.played if r.reward is not None and r.task in bench.tasks]
    rollouts_n = np.array(known[: bench.max_plays(RESCORED_ROLLOUTS)], object)
    plays = _own_tasks(bench, rollouts_n.tolist())
    first_n = _rescore(bench, rollouts_n.tolist(), plays)
    second_n = _rescore(bench, rollouts_n.tolist(), plays)
    recorded_n = np.array([_task_reward(rollout.reward) for rollout in rollouts_n])

    is_unsure_n = ~np.isclose(first_n, second_n, rtol=0, atol=REWARD_TOLERANCE, equal_nan=True)
    has_failed_n = np.isnan(first_n) & ~is_unsure_n
    if has_failed_n.any():
        failed_share = float(has_failed_n.mean())
        example = rollouts_n[has_failed_n][0]
        summary = (
            f"The scorer fails on {has_failed_n.sum()} of {len(rollouts_n)} rollouts, and yet they"
            " have a reward."
        )
        text = (
            f"{example.error or 'it fails when it is scored again'}; recorded"
            f" {example.reward.total:g}"
        )
        severity = CRITICAL if failed_share > CRITICAL_FAILED_SHARE else WARNING
        yield bench.finding("reward.error-scored", severity, summary, text, failed_share, example)

    # The rest is judged without the rollouts on which the scorer fails.
    rollouts_n = rollouts_n[~has_failed_n]
    first_n = first_n[~has_failed_n]
    second_n = second_n[~has_failed_n]
    recorded_n = recorded_n[~has_failed_n]
    is_unsure_n = is_unsure_n[~has_failed_n]
    is_other_n = ~np.isclose(first_n, recorded_n, rtol=0, atol=REWARD_TOLERANCE) & ~is_unsure_n
    count = len(rollouts_n)
    n_unsure = is_unsure_n.sum()
    n_other = is_other_n.sum()
    yield f"{n_other} of {count} recorded rewards differ from a second scoring, "
    yield f"{n_unsure} from a third"

    n_values = len(np.unique(first_n))
    if n_unsure > MIN_UNSURE_SHARE * count:
        unsure_share = float(is_unsure_n.mean())
        severity = CRITICAL if unsure_share > CRITICAL_UNSURE_SHARE else WARNING
        example = rollouts_n[is_unsure_n][0]
        summary = (
            f"The same rollout earns another reward when it is scored again: {n_unsure} of {count}"
            " do."
        )
        text = f"{first_n[is_unsure_n][0]:g}, then {second_n[is_unsure_n][0]:g}"
        yield bench.finding(
            "reward.nondeterministic", severity, summary, text, unsure_share, example
        )
    elif n_other and len(np.unique(recorded_n)) == 1 and n_values > 1:
        summary = (
            "One reward was given to all rollouts: scored one by one, they earn different ones."
        )
        text = (
            f"recorded {recorded_n[0]:g} for all {count}; scored again {n_values} different values"
        )
        yield bench.finding("reward.wrong-length", CRITICAL, summary, text, float(recorded_n[0]))
    elif n_other:
        summary = (
            f"{n_other} of {count} rewards are not those of their rollout's task: answers are"
            " misaligned."
        )
        evidence = list[Evidence]()
        shift = _find_shift(first_n, recorded_n)
        if shift is not None:
            text = f"shifted by {shift}, the second scoring gives the recorded rewards"
            evidence.append(make_evidence(text, shift))
        for n in np.flatnonzero(is_other_n)[:MAX_EXAMPLES]:
            text = f"recorded {recorded_n[n]:g}, by its task id {first_n[n]:g}"
            evidence.append(make_evidence(text, None, rollouts_n[n]))
        yield bench.finding("reward.misaligned", CRITICAL, summary, evidence)


def _incomplete_groups(bench: Bench) -> Answer:
    """Report groups that have more or fewer rollouts than the recipe asks for."""
    size = bench.config.sampling.size
    groups = by_group(bench.played)
    other_sizes = {name: len(group) for name, group in groups.items() if len(group) != size}
    if other_sizes:
        name, other_size = next(iter(other_sizes.items()))
        summary = (
            f"{len(other_sizes)} of {len(groups)} groups came back with another number of rewards"
            " than rollouts."
        )
        text = f"group {name} has {other_size} rollouts, sampling.size = {size}"
        yield bench.finding("reward.wrong-length", CRITICAL, summary, text, other_size)


def _own_tasks(bench: Bench, rollouts: Sequence[Rollout]) -> Plays:
    """Return each rollout's task with the gold answer that the rollout carries.

    A dataset may hold a question with two golds, which is another fault.
    """
    by_answer = {}
    for stage in reversed(bench.pool.stages):
        for task in stage.tasks:
            by_answer[task.id, task.answer] = (task, stage.taskset)
    plays = []
    for rollout in rollouts:
        plays.append(by_answer.get((rollout.task, rollout.answer), bench.tasks[rollout.task]))
    return plays


def _rescore(bench: Bench, rollouts: Sequence[Rollout], plays: Plays) -> NDArray[np.float64]:
    """Return what rollouts earn when they are scored again; NaN where the scorer fails."""
    return np.array([play.total for play in bench.replay(rollouts, plays)])


def _task_reward(reward: Reward) -> float:
    """Return a reward without the part for length, which the task knows nothing of."""
    length_parts = [part.value for part in reward.parts if part.name == OVERLONG_PART]
    return reward.total - sum(length_parts)


def _find_shift(first_n: NDArray[np.float64], recorded_n: NDArray[np.float64]) -> int | None:
    """Return the places by which rewards are shifted against their rollouts; None if none fits."""
    for shift in REWARD_SHIFTS:
        # What a shift rolls over the ends has no counterpart.
        if np.allclose(np.roll(first_n, shift)[2:-2], recorded_n[2:-2]):
            return shift
    return None


# Rollouts that are replayed alone and side by side.
REPLAYED_ROLLOUTS = 24
# Copies of each that run side by side: the last one begins when the others are under way.
COPIES_AT_ONCE = 3
# Characters of the last reply that a finding quotes.
QUOTED_REPLY_CHARACTERS = 60


@probe("state", finds=["task.state-leaks"], by_source=True)
def state(bench: Bench) -> Answer:
    """Replay up to 24 rollouts one by one, then thrice side by side: they must come out the same.

    The last of the three begins later than the others.
    """
    # Of rollouts that say the same to the same task, one is enough.
    distinct: dict[tuple[str, tuple[str, ...]], Rollout] = {}
    for rollout in (*bench.demonstrations, *bench.rollouts):
        if rollout.task in bench.tasks and rollout.error is None:
            texts = tuple(message.content for message in rollout.messages)
            distinct[rollout.task, texts] = rollout
    rollouts = list(distinct.values())[: bench.max_plays(REPLAYED_ROLLOUTS)]
    count = len(rollouts)
    require(rollouts, "no rollout went through")

    alone = bench.replay(rollouts)
    again = bench.replay(rollouts)
    together = bench.replay(rollouts * COPIES_AT_ONCE, at_once=True, late=count)
    # A scorer that can't repeat itself says nothing of state: then only replies are compared.
    with_rewards = all(_is_same(a, b) for a, b in zip(alone, again, strict=True))
    n_repeatable = 0
    leaks = list[int]()
    for n in range(count):
        if not _is_same(alone[n], again[n], with_rewards):
            continue
        n_repeatable += 1
        copies = together[n::count]
        if not all(_is_same(alone[n], copy, with_rewards) for copy in copies):
            leaks.append(n)

    n_observations = sum(len(play.texts) for play in alone)
    yield f"{len(leaks)} of {n_repeatable} rollouts ({n_observations} observations) differ side by "
    yield "side from alone"
    if leaks:
        first = leaks[0]
        summary = (
            f"Rollouts of this taskset share state: {len(leaks)} of {n_repeatable} see something"
            " else in company."
        )
        alone_text = _describe_outcome(alone[first])
        together_text = _describe_outcome(together[first])
        text = f"alone {alone_text!r}, side by side {together_text!r}"
        share = len(leaks) / n_repeatable
        yield bench.finding("task.state-leaks", CRITICAL, summary, text, share, rollouts[first])


def _is_same(a: ScoredPlay, b: ScoredPlay, with_rewards: bool = True) -> bool:
    """Return True if two plays saw the same replies, and earned the same reward."""
    if a.texts != b.texts:
        return False
    return not with_rewards or _rounded_total(a) == _rounded_total(b)


def _rounded_total(play: ScoredPlay) -> float | None:
    return None if play.reward is None else round(play.reward.total, 9)


def _describe_outcome(play: ScoredPlay) -> str:
    """Return the end of a task's last reply, and the reward that followed."""
    replies = [text for turn in play.texts for text in turn]
    last_reply = replies[-1] if replies else ""
    outcome = play.reward.total if play.reward else "failed"
    return f"{last_reply[-QUOTED_REPLY_CHARACTERS:]} → {outcome}"


# Tasks that each cheater tries.
CHEATED_TASKS = 8
# Tries of each: a noisy scorer pays a cheater now and then, which is another fault.
CHEATER_TRIES = 2
# Characters of a paid text that a finding quotes.
QUOTED_CHEAT_CHARACTERS = 80


@probe("cheater", finds=["task.evaluator-exposed", "reward.hackable"], by_source=True)
def cheater(bench: Bench) -> Answer:
    """Play the taskset's scripted cheaters on 8 tasks; none may earn the maximum."""
    taskset = bench.stage.taskset
    require(isinstance(taskset, HasCheaters), "the taskset has no scripted cheater")
    assert isinstance(taskset, HasCheaters)

    # By kind of cheater: the number of tasks tried, the texts that were paid, and for each of them
    # True if it says the answer.
    n_tried = defaultdict[int, int](int)
    paid_texts = defaultdict[int, list[str]](list)
    says_answer = defaultdict[int, list[bool]](list)
    for task in bench.stage.tasks[: bench.max_plays(CHEATED_TASKS)]:
        scored = try_task(taskset, task)
        top = scored.earned if scored.earned > scored.rival else np.inf
        rounds = []
        for _ in range(CHEATER_TRIES):
            rounds.append(play_scripts(taskset, task, taskset.cheaters(task)))
        for kind, tries in enumerate(zip(*rounds, strict=True)):
            n_tried[kind] += 1
            if all(pays_cheater(play, top) for play in tries):
                text = " ".join(text for turn in tries[0].texts for text in turn)
                paid_texts[kind].append(text)
                is_said = bool(task.answer) and task.answer.lower() in text.lower()
                says_answer[kind].append(is_said)

    n_paid = sum(len(texts) for texts in paid_texts.values())
    figure = f"{n_paid} of {sum(n_tried.values())} scripted cheaters earn the maximum"
    yield figure
    for kind, texts in sorted(paid_texts.items()):
        share = len(texts) / n_tried[kind]
        ratio = f"{len(texts)} of {n_tried[kind]}"
        if len(texts) < MIN_PAID_CHEATERS_SHARE * n_tried[kind]:
            continue
        # A cheater that is paid in a task with tools without ever saying the answer has reached
        # the evaluator; where there is nothing but text, the reward pays for too much.
        id = "reward.hackable"
        severity = CRITICAL
        if all(says_answer[kind]):
            # Many rewards look for the answer anywhere, and a model may never find that out: no
            # reason not to start.
            severity = WARNING
            summary = (
                f"The reward is paid in full for the answer among others: {ratio} who say"
                " everything earn it."
            )
        elif bench.tools:
            id = "task.evaluator-exposed"
            summary = (
                f"The evaluator can be reached from inside a rollout: {ratio} cheaters earn the"
                " maximum."
            )
        else:
            summary = (
                f"The reward is paid in full without the answer: {ratio} who say something else"
                " earn it."
            )
        paid_text = f"paid in full: {texts[0][-QUOTED_CHEAT_CHARACTERS:]!r}"
        evidence = [make_evidence(figure), make_evidence(paid_text, share)]
        yield bench.finding(id, severity, summary, evidence)


# Rollouts below which it may be chance: of 16 none does what 17% would (95%).
MIN_ROLLOUTS = 16
# Rollouts that it takes where nothing but their number speaks.
MIN_ROLLOUTS_WITHOUT_EVENT = 32
# Rollouts from which on a run is stopped for it: of 64 none does what 5% would.
MIN_CRITICAL_ROLLOUTS = 64
# Share of rollouts that run out unpaid, from which the reward may wait for something.
MIN_UNPAID_SHARE = 0.98
# Share of the expert's rollouts that must be unpaid without their last turn.
MIN_WAITING_SHARE = 0.5
# Share of unpaid rollouts that one more turn would pay.
MIN_EARNING_SHARE = 0.05
# Share of rollouts with twice the turns that end by themselves.
MIN_ENDED_SHARE = 0.1
# Tasks that are played with twice the turns, and rollouts of each.
LONGER_TASKS = 4
LONGER_ROLLOUTS = 4


# Rollouts that run out unpaid are no fault alone: a weak model looks the same. The expert's own
# rollouts decide, replayed without their last turn. Where they are paid all the same, a rollout
# that runs out is scored, and the model is weak. Where they earn the least as well, the reward
# waits for that turn, and the turn tells the rest:
#
#     the same words on every task    (`validate`, `submit`) An event without an answer in it.
#                                     The model's rollouts are replayed with these words as their
#                                     last turn: what that earns is their own work, which was done
#                                     and never scored.
#     another on every task           The answer itself, so it tells nothing of the model's work.
#                                     The model plays on with twice the turns: where it then ends
#                                     by itself, the limit cuts it.
@probe("paid", finds=["reward.never-computed", "context.completion-truncated"], by_source=True)
def paid(bench: Bench) -> Answer:
    """Count rollouts that run out of turns at the least reward, and seek what would be paid."""
    require(bench.config.sampling.max_turns > 1, "rollouts have one turn")
    played = [r for r in bench.rollouts if r.reward and r.task in bench.tasks]
    demonstrations = [r for r in bench.demonstrations if r.reward]
    is_enough = len(played) >= MIN_ROLLOUTS and demonstrations
    require(
        is_enough, f"fewer than {MIN_ROLLOUTS} rollouts, or none of the expert's, could be scored"
    )

    # A reward that can be negative and is 0 for every rollout was not earned either.
    is_nothing_earned = not any(r.reward and r.reward.total for r in played)
    unpaid = _unpaid_at_a_limit(played, is_nothing_earned)
    unpaid_demonstrations = _unpaid_at_a_limit(demonstrations, is_nothing_earned)
    yield f"{len(unpaid)} of {len(played)} rollouts run out unpaid, "
    yield f"{len(unpaid_demonstrations)} of {len(demonstrations)} of the expert's"
    if len(unpaid) < MIN_UNPAID_SHARE * len(played) or unpaid_demonstrations:
        return

    without_last = [rollout.model_messages[:-1] for rollout in demonstrations]
    shortened = bench.replay(demonstrations, turns=without_last)
    n_waiting = sum(not _is_paid(play.reward) for play in shortened)
    yield f"; without its last turn {n_waiting} are"
    if n_waiting < MIN_WAITING_SHARE * len(demonstrations):
        return

    unpaid_text = (
        f"{len(unpaid)} of {len(played)} rollouts run out of turns at the least reward, none of the"
        " expert's"
    )
    waiting_text = (
        f"{n_waiting} of {len(demonstrations)} rollouts of the expert's earn the least without"
        " their last turn"
    )
    share = len(unpaid) / len(played)
    evidence = [
        make_evidence(unpaid_text, share, unpaid[0], "sampling/ended/turn-limit/share"),
        make_evidence(waiting_text),
    ]
    event = _common_last_turn(demonstrations)
    if event is not None:
        yield from _judge_event(bench, event, unpaid, len(played), evidence)
    elif len(played) >= MIN_ROLLOUTS_WITHOUT_EVENT:
        yield from _judge_turn_limit(bench, evidence)


def _unpaid_at_a_limit(rollouts: Sequence[Rollout], is_nothing_earned: bool) -> list[Rollout]:
    """Return the rollouts that ended at a limit with the least reward, or with any if nothing is
    earned at all.
    """
    unpaid = []
    for rollout in rollouts:
        is_unpaid = is_nothing_earned or not _is_paid(rollout.reward)
        if rollout.ended in UNFINISHED_ENDINGS and is_unpaid:
            unpaid.append(rollout)
    return unpaid


def _is_paid(reward: Reward | None) -> bool:
    return reward is not None and not reward.is_lowest


def _common_last_turn(demonstrations: Sequence[Rollout]) -> Message | None:
    """Return the turn that ends all of the expert's rollouts, after different work; else None."""
    work = set[str]()
    last_turns: dict[str, Message] = {}
    for rollout in demonstrations:
        messages = rollout.model_messages
        work.add(repr(messages[:-1]))
        if messages:
            last = messages[-1]
            last_turns[repr((last.content, last.calls))] = last
    if len(last_turns) == 1 and len(work) > 1:
        return next(iter(last_turns.values()))
    return None


def _judge_event(
    bench: Bench,
    event: Message,
    unpaid: Sequence[Rollout],
    n_played: int,
    evidence: Sequence[Evidence],
) -> Answer:
    """Replay the model's rollouts with the expert's last turn: what that earns was never scored."""
    turns = [[*rollout.model_messages[:-1], event] for rollout in unpaid]
    replayed = bench.replay(unpaid, turns=turns)
    earning = []
    for rollout, play in zip(unpaid, replayed, strict=True):
        if _is_paid(play.reward):
            earning.append(rollout)

    calls = ", ".join(f"{call.name}({call.arguments})" for call in event.calls)
    event_text = repr(event.content.strip()[-QUOTED_REPLY_CHARACTERS:] or calls)
    text = (
        f"{len(earning)} of {len(unpaid)} rollouts would be paid as they are if they ended with"
        f" {event_text}"
    )
    yield f"; {text}"
    is_proven = len(earning) >= MIN_EARNING_SHARE * len(unpaid)
    severity = CRITICAL if is_proven and n_played >= MIN_CRITICAL_ROLLOUTS else WARNING
    summary = (
        f"The reward waits for {event_text}, which hardly any rollout says: what they did is never"
        " scored."
    )
    example = earning[0] if earning else None
    own_work = make_evidence(text, len(earning) / len(unpaid), example)
    basis = Basis.PROOF if is_proven else SIGNAL
    yield bench.finding(
        "reward.never-computed", severity, summary, [*evidence, own_work], basis=basis
    )


def _judge_turn_limit(bench: Bench, evidence: Sequence[Evidence]) -> Answer:
    """Play with twice the turns: rollouts that then end by themselves are cut by the limit."""
    sampling = bench.config.sampling
    longer = bench.play(
        bench.drawn[:LONGER_TASKS],
        LONGER_ROLLOUTS,
        "turns",
        max_turns=2 * sampling.max_turns,
        context=2 * sampling.context,
    )
    n_ended = sum(rollout.ended not in UNFINISHED_ENDINGS for rollout in longer)
    text = f"with twice the turns {n_ended} of {len(longer)} end by themselves"
    yield f"; {text}"
    if n_ended >= MIN_ENDED_SHARE * len(longer):
        id = "context.completion-truncated"
        fix = bench.more_turns
        summary = (
            f"sampling.max_turns = {sampling.max_turns} ends rollouts before their answer: {text}."
        )
    else:
        id = "reward.never-computed"
        fix = None
        summary = (
            "No rollout comes to an answer, which is all that is paid; more turns do not help."
        )
    evidence = [*evidence, make_evidence(text, n_ended / len(longer))]
    yield bench.finding(id, WARNING, summary, evidence, basis=SIGNAL, fix=fix)
