"""What the answers of the reward functions mean: findings on the reward, at the first generation."""

from typing import Any

import numpy as np

from uptrend.bridge.trl.batch import TrlBatch
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.guard import same_randomness
from uptrend.bridge.trl.probes import alignment
from uptrend.bridge.trl.probes.gold import gold_column
from uptrend.bridge.trl.probes.rescoring import Gold, Scorer, cut_of, gold_of, order_matters
from uptrend.bridge.trl.scale import RewardRange, Suspicion
from uptrend.records import Confidence, Evidence, Severity

SLOW = 1.0
"""Seconds that a generation's scoring may take for the functions to be asked again."""


def ask_rewards(
    trainer: Any, batch: TrlBatch, scoring: float, scale: RewardRange, findings_log: FindingsLog
) -> Suspicion | None:
    """Re-score gold answers, corrupted ones and the generation itself through the user's reward functions."""
    column = gold_column(batch.examples[0])
    reason = _reason_not_to(trainer, column, scoring)
    if reason or column is None:
        for id in ("reward.gold-rejected", "reward.misaligned"):
            findings_log.cannot_tell(id, reason)
        return None
    scorer = Scorer(trainer, batch, column)
    with same_randomness():
        cut = cut_of(scorer)
        if cut is not None:
            _say_cut(findings_log, scale.names[cut[0]], cut[1], batch.step)
            return None
        gold = Gold(None, np.nan, np.nan, "") if scorer.is_spent else gold_of(scorer)
        _judge_order(findings_log, scorer, trainer.num_generations, scale)
        if gold.judge is None:
            named = [scale.names[f] for f in scorer.functions if scorer.names_column(f)]
            return Suspicion(column, named) if named and not scorer.is_spent else None
        form = gold.rendering.format("GOLD")
        findings_log.acquit(
            "reward.gold-rejected", f"written as {form!r}, gold answers earn {gold.right:g}, wrong ones {gold.wrong:g}"
        )
        scale.judge, scale.right = gold.judge, gold.right
        bounds = np.full((2, len(scale.names)), np.nan)
        bounds[:, gold.judge] = gold.right, gold.wrong
        scale.see(bounds)
        _judge_alignment(trainer, findings_log, scorer, gold.judge)
    return None


def _reason_not_to(trainer: Any, column: str | None, scoring: float) -> str:
    if getattr(trainer, "environments", None):
        return "environments own the rewards"
    if column is None:
        return "the dataset has no column that looks like an answer"
    if scoring > SLOW:
        return f"the reward functions take {scoring:.1f} s a generation; they are not asked again above {SLOW:g} s"
    return ""


def _say_cut(findings_log: FindingsLog, name: str, form: str, step: int) -> None:
    findings_log.say(
        "reward.gold-rejected",
        Severity.CRITICAL,
        Confidence.HIGH,
        f"The reward function {name} cuts the prompt's length off each completion, but TRL's completions do not "
        "hold the prompt: right answers are cut away before they are looked at.",
        [
            Evidence(f"A gold answer written as {form.format('GOLD')!r} earns no more than a wrong one.", step=step),
            Evidence("Behind a filler as long as the prompt it does; behind one that is shorter by the answer's own "
                     "length it does not. The border moves with each task's prompt."),
        ],
    )  # fmt: skip


def _judge_order(findings_log: FindingsLog, scorer: Scorer, size: int, scale: RewardRange) -> None:
    """Moving whole groups must move their rewards with them."""
    if scorer.batch.size % size or scorer.batch.size // size < 2:
        return
    for function in scorer.functions:
        if scorer.is_spent:
            return
        found = order_matters(scorer, function, size)
        if found is None:
            findings_log.say(
                "reward.nondeterministic", Severity.NOTE, Confidence.MEDIUM,
                f"The reward function {scale.names[function]} gave other scores to the same rollouts when asked again.",
                [Evidence(f"{scorer.batch.size} rollouts of step {scorer.batch.step}.", step=scorer.batch.step)],
            )  # fmt: skip
        elif found[0]:
            findings_log.say(
                "reward.misaligned", Severity.CRITICAL, Confidence.HIGH,
                f"The reward function {scale.names[function]} scores completions against other prompts' answers: "
                "rewards change when groups change places.",
                [Evidence(f"With the groups in reverse order, {found[0]} of {found[1]} rollouts got another reward.",
                          float(found[0]), step=scorer.batch.step)],
            )  # fmt: skip


def _judge_alignment(trainer: Any, findings_log: FindingsLog, scorer: Scorer, judge: int) -> None:
    if scorer.is_spent or not hasattr(trainer.train_dataset, "__getitem__"):
        return
    own = alignment.own_against_others(scorer, judge, trainer.num_generations)
    if own is not None and own.shows:
        return
    prompts, answers = alignment.rows_of(trainer.train_dataset, scorer.column, alignment.TEXTS)
    if len(answers) < 2 * alignment.DISTINCT or len(set(answers)) < alignment.DISTINCT:
        return
    if alignment.texts_agree([alignment.plain_text(p) for p in prompts], answers):
        return
    every = max(1, len(answers) // alignment.LOOK)
    known = alignment.likelier_behind_its_own(
        trainer, prompts[::every][: alignment.LOOK], answers[::every][: alignment.LOOK]
    )
    if not known.excludes:
        return
    findings_log.say(
        "reward.misaligned",
        Severity.CRITICAL,
        Confidence.MEDIUM,
        f"The answers in the column {scorer.column!r} do not belong to their prompts: nothing ties the two together.",
        [
            Evidence(f"The model finds answers {known.mean:+.2f} ± {known.error:.2f} nats likelier behind their own "
                     f"prompts than behind others' ({known.count} rows); with the right ones it is well above 0.",
                     known.mean, step=scorer.batch.step),
            Evidence(f"Numbers, words and lengths of {len(answers)} prompts say nothing about their answers."),
            *([] if own is None else
              [Evidence(f"Completions earn {own.mean:+.3f} ± {own.error:.3f} more by their own answers than by "
                        "other prompts'.", own.mean, step=scorer.batch.step)]),
        ],
    )  # fmt: skip
