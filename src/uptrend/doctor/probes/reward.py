"""Probes of scoring: the same again, side by side, by cheaters, and whether a reward is ever
paid.
"""

from collections import defaultdict

import numpy as np

from uptrend.doctor.answers import UNFINISHED_ENDINGS
from uptrend.doctor.check import CRITICAL, SIGNAL, WARNING
from uptrend.doctor.probes.bench import Bench, by_group, make_evidence
from uptrend.doctor.probes.probe import Answer, probe, require
from uptrend.records import Basis, Reward
from uptrend.records.rollout import OVERLONG_PART
from uptrend.tasks.proof import (
    MIN_TAKEN_IN_SHARE,
    HasCheaters,
    ScoredPlay,
    is_taken_in,
    play_scripts,
    try_task,
)

# Share of rollouts that earn another reward when they are scored again above which it is noise.
CRITICAL_UNSURE_SHARE = 0.1


@probe(
    "rescoring",
    finds=[
        "reward.misaligned",
        "reward.nondeterministic",
        "reward.wrong-length",
        "reward.error-scored",
    ],
)
def rescoring(bench: Bench) -> Answer:
    """Say up to 64 rollouts to the tasks they name again, twice, and compare rewards with the
    recorded ones.
    """
    size = bench.config.sampling.size
    groups = by_group(bench.played)
    if odd := [(name, len(members)) for name, members in groups.items() if len(members) != size]:
        summary = (
            f"{len(odd)} of {len(groups)} groups came back with another number of rewards than"
            " rollouts."
        )
        text = f"group {odd[0][0]} has {odd[0][1]} rollouts, sampling.size = {size}"
        yield bench.finding("reward.wrong-length", CRITICAL, summary, text, odd[0][1])
    rollouts = np.array(
        [r for r in bench.played if r.reward is not None and r.task in bench.tasks][
            : bench.max_plays(64)
        ],
        object,
    )
    # One question may stand there with two golds, which is another fault: each is scored by its
    # own.
    own = {
        (t.id, t.answer): (t, stage.taskset)
        for stage in reversed(bench.pool.stages)
        for t in stage.tasks
    }
    plays = [own.get((r.task, r.answer), bench.tasks[r.task]) for r in rollouts]
    first, second = (
        np.array([_total(p.reward) for p in bench.replay(list(rollouts), plays)]) for _ in range(2)
    )
    recorded = np.array(
        [
            _total(r.reward) - sum(p.value for p in r.reward.parts if p.name == OVERLONG_PART)
            for r in rollouts
        ]
    )
    unsure = ~np.isclose(first, second, rtol=0, atol=1e-6, equal_nan=True)
    failed = np.isnan(first) & ~unsure
    if failed.any():
        share = float(failed.mean())
        example = rollouts[failed][0]
        summary = (
            f"The scorer fails on {failed.sum()} of {len(rollouts)} rollouts, and yet they have a"
            " reward."
        )
        text = (
            f"{example.error or 'it fails when it is scored again'}; recorded"
            f" {_total(example.reward):g}"
        )
        severity = CRITICAL if share > 0.1 else WARNING
        yield bench.finding("reward.error-scored", severity, summary, text, share, example)
    rollouts, first, second, recorded, unsure = (
        x[~failed] for x in (rollouts, first, second, recorded, unsure)
    )
    wrong = ~np.isclose(first, recorded, rtol=0, atol=1e-6) & ~unsure
    count = len(rollouts)
    yield (
        f"{wrong.sum()} of {count} recorded rewards differ from a second scoring, {unsure.sum()}"
        " from a third"
    )
    if unsure.sum() > 0.01 * count:
        share = float(unsure.mean())
        severity = CRITICAL if unsure.mean() > CRITICAL_UNSURE_SHARE else WARNING
        summary = (
            f"The same rollout earns another reward when it is scored again: {unsure.sum()} of"
            f" {count} do."
        )
        text = f"{first[unsure][0]:g}, then {second[unsure][0]:g}"
        yield bench.finding(
            "reward.nondeterministic", severity, summary, text, share, rollouts[unsure][0]
        )
    elif wrong.any() and len(np.unique(recorded)) == 1 and len(np.unique(first)) > 1:
        summary = (
            "One reward was given to all rollouts: scored one by one, they earn different ones."
        )
        text = (
            f"recorded {recorded[0]:g} for all {count}; scored again {len(np.unique(first))}"
            " different values"
        )
        yield bench.finding("reward.wrong-length", CRITICAL, summary, text, float(recorded[0]))
    elif wrong.any():
        shift = next(
            (k for k in (1, -1, 2, -2) if np.allclose(np.roll(first, k)[2:-2], recorded[2:-2])),
            None,
        )
        shifted = make_evidence(
            f"shifted by {shift}, the second scoring gives the recorded rewards", shift
        )
        examples = list(zip(recorded[wrong], first[wrong], rollouts[wrong], strict=True))[:3]
        evidence = [
            make_evidence(f"recorded {was:g}, by its task id {is_now:g}", None, r)
            for was, is_now, r in examples
        ]
        summary = (
            f"{wrong.sum()} of {count} rewards are not those of their rollout's task: answers are"
            " misaligned."
        )
        yield bench.finding(
            "reward.misaligned", CRITICAL, summary, [shifted] * (shift is not None) + evidence
        )


def _total(reward: Reward | None) -> float:
    return np.nan if reward is None else reward.total


@probe("state", finds=["task.state-leaks"])
def state(bench: Bench) -> Answer:
    """Replay up to 24 of the expert's and the model's rollouts one by one, then thrice side by
    side, the last later.
    """
    everyone = [
        r
        for r in (*bench.demonstrations, *bench.rollouts)
        if r.task in bench.tasks and r.error is None
    ]
    # Of rollouts that say the same to the same task, one is enough.
    chosen = list({(r.task, tuple(m.content for m in r.messages)): r for r in everyone}.values())[
        : bench.max_plays(24)
    ]
    require(chosen, "no rollout went through")
    alone = bench.replay(chosen)
    again = bench.replay(chosen)
    together = bench.replay([*chosen] * 3, at_once=True, late=len(chosen))
    # A scorer that can't repeat itself says nothing of state: then only what was observed counts.
    scored = all(_same(a, b) for a, b in zip(alone, again, strict=True))
    sure = [i for i in range(len(chosen)) if _same(alone[i], again[i], scored)]
    leaks = [
        i
        for i in sure
        if not all(_same(alone[i], other, scored) for other in together[i :: len(chosen)])
    ]
    observed = sum(len(p.texts) for p in alone)
    yield (
        f"{len(leaks)} of {len(sure)} rollouts ({observed} observations) differ side by side from"
        " alone"
    )
    if leaks:
        first = leaks[0]
        shown = list[str]()
        for played in (alone[first], together[first]):
            texts = ["", *(text for replies in played.texts for text in replies)]
            shown.append(
                f"{texts[-1][-60:]} → {played.reward.total if played.reward else 'failed'}"
            )
        summary = (
            f"Rollouts of this taskset share state: {len(leaks)} of {len(sure)} see something else"
            " in company."
        )
        text = f"alone {shown[0]!r}, side by side {shown[1]!r}"
        yield bench.finding(
            "task.state-leaks", CRITICAL, summary, text, len(leaks) / len(sure), chosen[first]
        )


def _same(a: ScoredPlay, b: ScoredPlay, scored: bool = True) -> bool:
    rewards = [None if p.reward is None else round(p.reward.total, 9) for p in (a, b)]
    return a.texts == b.texts and (not scored or rewards[0] == rewards[1])


# Tasks that each cheater tries.
CHEATED_TASKS = 8


@probe("cheater", finds=["task.evaluator-exposed", "reward.hackable"])
def cheater(bench: Bench) -> Answer:
    """Play the taskset's scripted cheaters on 8 tasks; none may earn the maximum."""
    taskset = bench.stage.taskset
    require(isinstance(taskset, HasCheaters), "the taskset has no scripted cheater")
    assert isinstance(taskset, HasCheaters)
    # by kind of cheater
    paid = defaultdict[int, list[tuple[str, bool]]](list)
    tried = defaultdict[int, int](int)
    for task in bench.stage.tasks[: bench.max_plays(CHEATED_TASKS)]:
        known = try_task(taskset, task)
        most = known.earned if known.earned > known.rival else np.inf
        # Twice: a noisy scorer pays anybody now and then, which is another fault.
        rounds = [play_scripts(taskset, task, taskset.cheaters(task)) for _ in range(2)]
        for kind, tries in enumerate(zip(*rounds, strict=True)):
            tried[kind] += 1
            if all(is_taken_in(play, most) for play in tries):
                said = " ".join(text for turn in tries[0].texts for text in turn)
                paid[kind].append((said, bool(task.answer) and task.answer.lower() in said.lower()))
    figure = (
        f"{sum(map(len, paid.values()))} of {sum(tried.values())} scripted cheaters earn the"
        " maximum"
    )
    yield figure
    for kind in sorted(paid):
        if len(paid[kind]) < MIN_TAKEN_IN_SHARE * tried[kind]:
            continue
        ratio = f"{len(paid[kind])} of {tried[kind]}"
        share = len(paid[kind]) / tried[kind]
        is_said = all(says_answer for _, says_answer in paid[kind])
        # Where there are tools, who is paid without ever saying the answer has reached the
        # evaluator; where there is nothing but text, the reward pays for too much.
        id = "reward.hackable"
        severity = WARNING if is_said else CRITICAL
        # Many rewards look for the answer anywhere, and a model may never find that out: no reason
        # not to start.
        summary = (
            f"The reward is paid in full for the answer among others: {ratio} who say everything"
            " earn it."
        )
        if not is_said:
            summary = (
                f"The reward is paid in full without the answer: {ratio} who say something else"
                " earn it."
            )
        if bench.tools and not is_said:
            id = "task.evaluator-exposed"
            summary = (
                f"The evaluator can be reached from inside a rollout: {ratio} cheaters earn the"
                " maximum."
            )
        evidence = [
            make_evidence(figure),
            make_evidence(f"paid in full: {paid[kind][0][0][-80:]!r}", share),
        ]
        yield bench.finding(id, severity, summary, evidence)


FEW = 16  # rollouts below which it may be chance: of 16 none does what 17% would (95%)
ENOUGH = 32  # rollouts that it takes where nothing but their number speaks
SURE = 64  # rollouts from which on a run is stopped for it: of 64 none does what 5% would
# Shares of rollouts that run out unpaid, of these that one more turn would pay, and of those with
# twice the turns that end by themselves.
MIN_UNPAID_SHARE = 0.98
MIN_EARNING_SHARE = 0.05
MIN_ENDED_SHARE = 0.1


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
@probe("paid", finds=["reward.never-computed", "context.completion-truncated"])
def paid(bench: Bench) -> Answer:
    """Count rollouts that run out of turns at the least reward; where nearly all do, ask whether
    that is ever paid.
    """
    require(bench.config.sampling.max_turns > 1, "rollouts have one turn")
    known = [r for r in bench.rollouts if r.task in bench.tasks]
    played, shown = (
        [r for r in rollouts if r.reward] for rollouts in (known, bench.demonstrations)
    )
    enough = len(played) >= FEW and shown
    require(enough, f"fewer than {FEW} rollouts, or none of the expert's, could be scored")
    # A reward that can be negative and is 0 for everybody was not earned either.
    is_nothing = not any(r.reward and r.reward.total for r in played)
    out, expert = (
        [r for r in rs if r.ended in UNFINISHED_ENDINGS and (is_nothing or not _is_paid(r.reward))]
        for rs in (played, shown)
    )
    yield (
        f"{len(out)} of {len(played)} rollouts run out unpaid, {len(expert)} of {len(shown)} of the"
        " expert's"
    )
    if len(out) < MIN_UNPAID_SHARE * len(played) or expert:
        return
    unpaid = sum(
        not _is_paid(p.reward)
        for p in bench.replay(shown, turns=[r.model_messages[:-1] for r in shown])
    )
    yield f"; without its last turn {unpaid} are"
    if unpaid < 0.5 * len(shown):
        return
    text = (
        f"{len(out)} of {len(played)} rollouts run out of turns at the least reward, none of the"
        " expert's"
    )
    evidence = [
        make_evidence(text, len(out) / len(played), out[0], "sampling/ended/turn-limit/share"),
        make_evidence(
            f"{unpaid} of {len(shown)} rollouts of the expert's earn the least without their last"
            " turn"
        ),
    ]
    last = {
        repr((said[-1].content, said[-1].calls)): said[-1]
        for r in shown
        if (said := r.model_messages)
    }
    # the same words after different work
    if len(last) == 1 and len({repr(r.model_messages[:-1]) for r in shown}) > 1:
        words = next(iter(last.values()))
        closed = bench.replay(out, turns=[[*r.model_messages[:-1], words] for r in out])
        earning = [r for r, again in zip(out, closed, strict=True) if _is_paid(again.reward)]
        event = repr(
            words.content.strip()[-60:]
            or ", ".join(f"{call.name}({call.arguments})" for call in words.calls)
        )
        text = (
            f"{len(earning)} of {len(out)} rollouts would be paid as they are if they ended with"
            f" {event}"
        )
        yield f"; {text}"
        is_cause = len(earning) >= MIN_EARNING_SHARE * len(out)
        severity = CRITICAL if is_cause and len(played) >= SURE else WARNING
        sure = Basis.PROOF if is_cause else SIGNAL
        summary = (
            f"The reward waits for {event}, which hardly any rollout says: what they did is never"
            " scored."
        )
        evidence.append(make_evidence(text, len(earning) / len(out), next(iter(earning), None)))
        yield bench.finding("reward.never-computed", severity, summary, evidence, basis=sure)
    elif len(played) >= ENOUGH:
        s = bench.config.sampling
        fix = None
        more = bench.play(
            bench.drawn[:4], 4, "turns", max_turns=2 * s.max_turns, context=2 * s.context
        )
        ended = sum(r.ended not in UNFINISHED_ENDINGS for r in more)
        text = f"with twice the turns {ended} of {len(more)} end by themselves"
        yield f"; {text}"
        id = "reward.never-computed"
        summary = (
            "No rollout comes to an answer, which is all that is paid; more turns do not help."
        )
        if ended >= MIN_ENDED_SHARE * len(more):
            id = "context.completion-truncated"
            fix = bench.more_turns
            summary = (
                f"sampling.max_turns = {s.max_turns} ends rollouts before their answer: {text}."
            )
        evidence.append(make_evidence(text, ended / len(more)))
        yield bench.finding(id, WARNING, summary, evidence, basis=SIGNAL, fix=fix)


def _is_paid(reward: Reward | None) -> bool:
    return reward is not None and not reward.is_lowest
