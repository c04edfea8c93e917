"""Held-out results among the training's rows: which columns they are, and what they say."""

import re
from functools import cache
from typing import Any

from uptrend.bridge.importers.log import Row, is_finite, number
from uptrend.records.dialects import LOGGERS, metric_names, plain_name

_PREFIX = re.compile(
    r"(?:eval|evaluation|val|valid|validation|test|heldout|held_out|held-out|val-core|val-aux|val_reward)[_/. -]", re.I
)
_COSTS = re.compile(r"(?:runtime|samples_per_second|steps_per_second|num_tokens|epoch|model_preparation_time)$")
_ACCURACY = re.compile(
    r"(?:^|[_/. ])(?:accuracy|acc|correct|exact_match|em|pass@1|pass_at_1|solve_rate|success_rate|win_rate)"
    r"(?:/mean(?:@\d+)?|_mean|/[\w-]+)?$",
    re.I,
)
_REWARD = re.compile(r"(?:^|[_/. ])(?:reward|score|test_score|return)(?:/mean(?:@\d+)?|/total|_mean|/[\w-]+)?$", re.I)
_REWARD_LATE = re.compile(r"(?:mean_reward|avg_reward|avg@\d+|mean_score|mean@\d+)$", re.I)
_SPREAD = re.compile(r"(?:std|var|min|max|std@\d+)$", re.I)


@cache
def is_evaluation(column: str) -> bool:
    """Say whether a column is of an evaluation: it has the prefix of one and is no known metric of training."""
    name = plain_name(column)
    return _PREFIX.match(name) is not None and not any(name in metric_names(trainer) for trainer in LOGGERS)


def evaluation(row: Row, step: int) -> dict[str, Any] | None:
    """An evaluation with the keys of evals.jsonl as far as they are there, and its own names besides."""
    found = {plain_name(key): number(value) for key, value in row.items() if is_finite(value)}
    found = {key: value for key, value in found.items() if not _COSTS.search(key)}
    if not found:
        return None
    result: dict[str, Any] = {"step": step}
    accuracy = _first(found, _ACCURACY)
    reward = _first(found, _REWARD) or _first(found, _REWARD_LATE)
    if accuracy is not None:
        result["accuracy"] = found[accuracy]
    if reward is not None and reward != accuracy:
        result["reward"] = found[reward]
    return result | found


def _first(found: dict[str, float | None], pattern: re.Pattern[str]) -> str | None:
    """The shortest name of this form: the whole before its components."""
    names = [name for name in found if pattern.search(name) and not _SPREAD.search(name)]
    return min(names, key=len, default=None)
