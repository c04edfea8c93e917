"""Answers to what people ask most about a log: values that look like faults and are none, and when
they would be.

The texts are in `normal.toml`; a function here decides by a run's values if one applies, and
returns the numbers for its braces. What a finding explains is not normal: such an answer is left
out.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import alarms
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.present.formatting import number, percent
from uptrend.records import Finding, NormalSign, TrendKind
from uptrend.records.view import Floats

LOSS_METRICS = ("loss/total", "loss/policy")
GRADIENT_METRIC = "gradient/norm/before"
KL_METRIC = "kl/reference/mean"
CLIP_METRICS = ("clip/low/share", "clip/high/share", "clip/region/share")
RATIO_METRIC = "learner/ratio/mean"
# verl logs the mean of −log ratio.
LOG_RATIO_COLUMN = "actor/ppo_kl"
SPREAD_METRICS = ("reward/group_std/mean", "reward/std")
RATE_METRIC = "optimizer/lr"

# Loss up to which people ask why it is 0 (TRL prints four decimals), and from which it is no usual
# one.
NEAR_ZERO_LOSS = 1e-3
MAX_USUAL_LOSS = 10.0
# Distance of a ratio from 1, and of its logarithm from 0, that rounding leaves.
MAX_RATIO_ROUNDING = 1e-3
# Points of a curve that shows a direction, and last / first spread that has fallen.
MIN_POINTS = 3
FALLEN_SPREAD = 0.8
# Nats per token up to which a KL that grows is usual.
MAX_USUAL_KL = 0.5
# Points from which 0 is no longer the first line's alone.
MAX_FIRST_LINES = 2
# Share of dead groups up to which it is usual.
MAX_USUAL_DEAD_SHARE = 0.5

Values = Mapping[str, str]
Sign = Callable[[Case], Values | None]


def normal_signs(case: Case, listed: Iterable[Finding]) -> tuple[NormalSign, ...]:
    """Return the normal values of another trainer's log, beside the findings that its report
    lists.
    """
    if case.view.trainer == "uptrend":
        return ()
    alarm_ids = {finding.id for finding in alarms(listed)}
    signs: list[NormalSign] = []
    for id, texts in _texts().items():
        values = SIGNS[id](case) if alarm_ids.isdisjoint(texts["unless"]) else None
        if values is not None:
            text = texts["text"].format_map(values)
            signs.append(NormalSign(id, text, texts["otherwise"]))
    return tuple(signs)


@cache
def _texts() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("normal.toml").read_text(encoding="utf-8"))


def _first_curve(case: Case, metrics: Iterable[str]) -> Floats:
    """Return the values of the first of several metrics that was logged."""
    for metric in metrics:
        if case.has(metric):
            return case.curve(metric)[1]
    return np.zeros(0)


def _range(values: Floats) -> str:
    """Return one value, or the least and the largest."""
    low = number(float(values.min()) + 0.0)  # no −0
    high = number(float(values.max()) + 0.0)
    return low if low == high else f"{low} to {high}"


def _small_loss(case: Case) -> Floats:
    """Return a loss that stays near 0; empty for any other."""
    loss = _first_curve(case, LOSS_METRICS)
    is_small = len(loss) > 0 and float(np.abs(loss).max()) <= NEAR_ZERO_LOSS
    return loss if is_small else loss[:0]


def _loss_zero(case: Case) -> Values | None:
    loss = _small_loss(case)
    gradient = case.curve(GRADIENT_METRIC)[1]
    if not len(loss) or not len(gradient) or float(np.median(gradient)) <= 0:
        return None
    return {"loss": _range(loss), "gradient": _range(gradient)}


def _loss_zero_without_gradient(case: Case) -> Values | None:
    loss = _small_loss(case)
    if not len(loss) or case.has(GRADIENT_METRIC) or GRADIENT_METRIC in case.view.nonfinite:
        return None
    # Groups that differ, or a policy that moves, have a gradient.
    spread = _first_curve(case, SPREAD_METRICS)
    is_alive = bool(spread.any()) or bool(case.curve(KL_METRIC)[1].any())
    return {"loss": _range(loss)} if is_alive else None


def _loss_negative(case: Case) -> Values | None:
    loss = _first_curve(case, LOSS_METRICS)
    if not len(loss) or float(np.abs(loss).max()) > MAX_USUAL_LOSS:
        return None
    low = float(loss.min())
    return {"loss": number(low)} if low < -NEAR_ZERO_LOSS else None


def _has_several_updates(case: Case) -> bool:
    updates = case.value("learning.updates") or 1
    minibatches = case.value("learning.minibatches") or 1
    return bool(updates * minibatches > 1)


def _clip_zero(case: Case) -> Values | None:
    curves = [case.curve(metric)[1] for metric in CLIP_METRICS if case.has(metric)]
    if not curves or any(curve.any() for curve in curves) or _has_several_updates(case):
        return None
    return {}


def _ratio_one(case: Case) -> Values | None:
    distance = np.abs(case.curve(RATIO_METRIC)[1] - 1)
    log_ratio = case.view.columns.get(LOG_RATIO_COLUMN)
    if log_ratio is not None:
        distance = np.append(distance, np.abs(log_ratio[np.isfinite(log_ratio)]))
    is_one = len(distance) > 0 and float(distance.max()) <= MAX_RATIO_ROUNDING
    return {} if is_one and not _has_several_updates(case) else None


def _spread_falls(case: Case) -> Values | None:
    spread = _first_curve(case, SPREAD_METRICS)
    reward = case.summary(REWARD_METRIC)
    if len(spread) < MIN_POINTS or reward is None or case.trend.kind is TrendKind.FALLING:
        return None
    quarter = max(1, len(spread) // 4)
    first = float(np.median(spread[:quarter]))
    last = float(np.median(spread[-quarter:]))
    has_risen = case.is_learning or (case.is_excerpt and reward.last > reward.first)
    if last >= FALLEN_SPREAD * first or not has_risen:
        return None
    return {"first": number(first), "last": number(last)}


def _kl_grows(case: Case) -> Values | None:
    kl = case.summary(KL_METRIC)
    if kl is None or len(kl.values) < MIN_POINTS or case.trend.kind is TrendKind.FALLING:
        return None
    first = float(kl.values[0])
    grows = kl.last > max(first, 0.0) and (kl.rises or case.is_excerpt)
    if not grows or float(kl.values.max()) > MAX_USUAL_KL or first < 0:
        return None
    return {"first": number(first), "last": number(kl.last)}


def _kl_zero(case: Case) -> Values | None:
    kl = case.curve(KL_METRIC)[1]
    is_first = 0 < len(kl) <= MAX_FIRST_LINES
    return {} if is_first and not kl.any() else None


def _rate_zero(case: Case) -> Values | None:
    rates = case.curve(RATE_METRIC)[1]
    is_first = 0 < len(rates) <= MAX_FIRST_LINES
    return {} if is_first and not rates.any() and not case.has_rounded_zeros else None


def _some_groups_dead(case: Case) -> Values | None:
    dead = case.dead_groups
    if not len(dead) or not case.has("advantage/dead/share"):
        return None
    share = float(dead.mean())
    return {"share": percent(share, 0)} if 0 < share < MAX_USUAL_DEAD_SHARE else None


SIGNS: Mapping[str, Sign] = {
    "loss-zero": _loss_zero,
    "loss-zero-without-gradient": _loss_zero_without_gradient,
    "loss-negative": _loss_negative,
    "clip-zero": _clip_zero,
    "ratio-one": _ratio_one,
    "spread-falls": _spread_falls,
    "kl-grows": _kl_grows,
    "kl-zero": _kl_zero,
    "rate-zero": _rate_zero,
    "some-groups-dead": _some_groups_dead,
}
