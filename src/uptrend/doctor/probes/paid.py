"""Whether what earns a reward ever happens: rollouts that run out of turns at the least reward, as no expert's do.

That alone is no fault: a weak model looks the same. The expert's own rollouts decide, said again without their last
turn. Where they are paid all the same, a rollout that runs out is scored, and the model is weak. Where they earn the
least as well, the reward waits for that turn, and what it is tells the rest:

    the same words on every task    (`validate`, `submit`) An event without an answer in it. The model's rollouts are
                                    said again with these words for their last turn: what that earns is their own work,
                                    which was done and never scored.
    another on every task           The answer itself, so it tells nothing of the model's work. The model plays on with
                                    twice the turns: where it then ends by itself, the limit cuts it.
"""

from collections.abc import Sequence

from uptrend.doctor.probes.bench import CRITICAL, HIGH, MEDIUM, WARNING, Bench, name_of
from uptrend.doctor.probes.replay import Replayed, said_again, turns
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.doctor.probes.room import play_with, too_few_turns
from uptrend.records import Confidence, Ending, Evidence, Message, Reward, Rollout, Severity

RUN_OUT = (Ending.TURN_LIMIT, Ending.CONTEXT_FULL)
NEARLY_ALL = 0.98
"""The share of rollouts that run out at the least reward, from which on hardly anything is paid."""
FEW = 16
"""Rollouts, below which it may be chance: of 16 none does what 17% would (95%)."""
ENOUGH = 32
"""Rollouts that it takes where nothing but their number speaks."""
SURE = 64
"""Rollouts from which on a run is stopped for it: of 64 none does what 5% would."""
SOME = 0.05
"""The share of the model's own work that would be paid, from which on the wait is what costs it."""
MORE = 0.1
"""The share that ends by itself with more room, from which on room is what was missing."""
TASKS, SIZE = 4, 4


def probe(bench: Bench) -> Result:
    """Count rollouts that run out unpaid; where nearly all do, ask whether running out is ever paid."""
    if bench.config.sampling.max_turns < 2:
        return not_asked("rollouts have one turn")
    known = [r for r in bench.rollouts if r.task in bench.tasks]
    played, shown = ([r for r in rollouts if r.reward] for rollouts in (known, bench.demonstrations))
    if len(played) < FEW or not shown:
        return not_asked(f"fewer than {FEW} rollouts, or none of the expert's, could be scored")
    out, expert = ([r for r in rollouts if _is_out_unpaid(r)] for rollouts in (played, shown))
    figure = f"{len(out)} of {len(played)} rollouts run out unpaid, {len(expert)} of {len(shown)} of the expert's"
    if len(out) < NEARLY_ALL * len(played) or expert:
        return told(figure)
    unpaid = sum(not _is_paid(r.reward) for r in _again(bench, shown, [turns(r)[:-1] for r in shown]))
    figure += f"; without its last turn {unpaid} are"
    if unpaid < 0.5 * len(shown):
        return told(figure)
    waits = f"{unpaid} of {len(shown)} rollouts of the expert's earn the least without their last turn"
    words = _same_words(shown)
    if words is not None:
        return _event_missing(bench, played, out, words, (figure, waits))
    return _answer_missing(bench, played, out, (figure, waits))


def _event_missing(
    bench: Bench, played: list[Rollout], out: list[Rollout], words: Message, said: tuple[str, str]
) -> Result:
    """The expert's last turn holds no answer: say it for the model, and see what its work would have earned."""
    figure, waits = said
    closed = _again(bench, out, [[*turns(r)[:-1], words] for r in out])
    paid = [r for r, again in zip(out, closed, strict=True) if _is_paid(again.reward)]
    text = f"{len(paid)} of {len(out)} rollouts would be paid as they are if they ended with {_shown(words)}"
    is_cause = len(paid) >= SOME * len(out)
    severity = CRITICAL if is_cause and len(played) >= SURE else WARNING
    summary = f"The reward waits for {_shown(words)}, which hardly any rollout says: what they did is never scored."
    evidence = (_seen(played, out), Evidence(waits), Evidence(text, len(paid) / len(out), rollout=_name(paid)))
    return _found(bench, (severity, HIGH if is_cause else MEDIUM), summary, evidence, f"{figure}; {text}")


def _answer_missing(bench: Bench, played: list[Rollout], out: list[Rollout], said: tuple[str, str]) -> Result:
    """The expert's last turn is its answer: whether the model would come to one with more turns."""
    figure, waits = said
    if len(played) < ENOUGH:
        return told(figure)
    s = bench.config.sampling
    more = play_with(bench, bench.drawn[:TASKS], SIZE, "turns", max_turns=2 * s.max_turns, context=2 * s.context)
    ended = sum(r.ended not in RUN_OUT for r in more)
    text = f"with twice the turns {ended} of {len(more)} end by themselves"
    evidence = (_seen(played, out), Evidence(waits), Evidence(text, ended / len(more)))
    if ended >= MORE * len(more):
        summary = f"sampling.max_turns = {s.max_turns} ends rollouts before their answer: {text}."
        return told(f"{figure}; {text}", [too_few_turns(bench, WARNING, MEDIUM, summary, *evidence)])
    summary = "No rollout comes to an answer, which is all that is paid; more turns do not help."
    return _found(bench, (WARNING, MEDIUM), summary, evidence, f"{figure}; {text}")


def _found(
    bench: Bench, how: tuple[Severity, Confidence], summary: str, evidence: Sequence[Evidence], figure: str
) -> Result:
    return told(figure, [bench.found("reward.never-computed", *how, summary, *evidence)])


def _seen(played: list[Rollout], out: list[Rollout]) -> Evidence:
    text = f"{len(out)} of {len(played)} rollouts run out of turns at the least reward, none of the expert's"
    return Evidence(text, len(out) / len(played), "sampling/ended/turn-limit/share", rollout=_name(out))


def _name(rollouts: Sequence[Rollout]) -> str:
    return name_of(rollouts[0]) if rollouts else ""


def _again(bench: Bench, rollouts: Sequence[Rollout], words: Sequence[Sequence[Message]]) -> list[Replayed]:
    return said_again(words, [bench.tasks[r.task] for r in rollouts], [r.seed for r in rollouts])


def _same_words(shown: Sequence[Rollout]) -> Message | None:
    """The expert's last turn, if it is the same after different work."""
    last = {repr((said[-1].content, said[-1].calls)): said[-1] for said in map(turns, shown) if said}
    work = {repr(turns(r)[:-1]) for r in shown}
    return next(iter(last.values())) if len(last) == 1 and len(work) > 1 else None


def _shown(words: Message) -> str:
    called = ", ".join(f"{call.name}({call.arguments})" for call in words.calls)
    return repr(words.content.strip()[-60:] or called)


def _is_out_unpaid(rollout: Rollout) -> bool:
    return rollout.ended in RUN_OUT and not _is_paid(rollout.reward)


def _is_paid(reward: Reward | None) -> bool:
    return reward is not None and reward.total > reward.low + 1e-6
