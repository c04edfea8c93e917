"""From a trainer's name of a metric to ours, and from the names of a log to the trainer that wrote it."""

import re
from functools import cache

from uptrend.bridge.importers.names import PLAIN, TABLES

# Words that say which statistic a reward is, so that `reward/NAME` and `NAME_reward` do not take them for parts.
STATISTICS = frozenset({
    "mean", "avg", "average", "std", "stdev", "var", "min", "max", "median", "total", "sum", "count", "best",
    "running", "last", "final", "first", "group", "smoothed", "ema", "baseline", "current", "cumulative", "raw",
    "norm", "normalized", "shaped", "advantage", "p10", "p50", "p90", "eval", "val", "test", "train",
    "zero", "nonzero", "threshold", "target", "scale", "weight", "low", "high", "high_mean", "delta", "step",
    "episode", "batch",
})  # fmt: skip

BOOKKEEPING = frozenset({
    "step", "_step", "global_step", "train_step", "training_step", "trainer/global_step", "training/global_step",
    "progress/step", "progress/batch", "batch_index", "batch", "iteration", "iter", "update", "epoch",
    "progress/epoch", "training/epoch", "time", "timestamp", "_timestamp", "_runtime", "runtime", "wall_time",
    "num_tokens", "num_input_tokens_seen",
})  # fmt: skip


@cache
def plain_name(column: str) -> str:
    """A column's name without the blanks and the prefix that loggers add: `train/`, and blanks around a slash."""
    name = re.sub(r"\s*/\s*", "/", column.strip())
    return name.removeprefix("train/") or name


@cache
def is_bookkeeping(column: str) -> bool:
    """Whether a column counts or times instead of measuring."""
    return plain_name(column).lower() in BOOKKEEPING


def translate(column: str, trainer: str) -> str | None:
    """Our name of a trainer's metric, if there is one."""
    found = rank(column, trainer)
    return found[1] if found else None


@cache
def rank(column: str, trainer: str) -> tuple[int, str] | None:
    """How early a name stands in the tables that hold for this trainer, and our name for it."""
    name = plain_name(column)
    if trainer == "uptrend":
        return (0, name)
    key = re.sub(r"\s+", "_", name).lower()
    for at, table in enumerate(_order(trainer)):
        for place, (theirs, ours) in enumerate(table.items()):
            if theirs == key:
                return 1000 * at + place, ours
        for place, (theirs, ours) in enumerate(table.items()):
            part = _part(theirs, name)
            if part is not None:
                return 1000 * at + place, ours.replace("NAME", part)
    return None


def _order(trainer: str) -> list[dict[str, str]]:
    """The tables to look in: the trainer's own, then home-made names, then everybody else's."""
    own = [TABLES[trainer]] if trainer in TABLES else []
    others = [table for name, table in TABLES.items() if name not in (trainer, "plain")]
    return [*own, PLAIN, *others]


def _part(theirs: str, name: str) -> str | None:
    """What stands for NAME where a name has this form; None where it has not, or where it is a statistic."""
    if "NAME" not in theirs and "AGENT" not in theirs:
        return None
    match = _pattern(theirs).fullmatch(name)
    if match is None:
        return None
    part = match.groupdict().get("name", "")
    return None if part and part.lower().split("_")[0] in STATISTICS else part


@cache
def _pattern(theirs: str) -> re.Pattern[str]:
    text = re.escape(theirs).replace("AGENT", "[^/]+").replace("NAME", r"(?P<name>[^/\s]+)")
    return re.compile(text)


def recognize(columns: list[str]) -> str:
    """The trainer whose own names a log has most of; unknown where they could be anybody's."""
    keys = {re.sub(r"\s+", "_", plain_name(column)).lower() for column in columns}
    if {"advantage/dead/share", "optimizer/lr"} & keys:
        return "uptrend"
    scores = {trainer: sum(_tells(key, trainer) for key in keys) for trainer in TABLES if trainer != "plain"}
    best = max(scores, key=lambda trainer: scores[trainer])
    return best if scores[best] else "unknown"


_SIGNS = {
    "trl": r"completions?/(mean|clipped|max|min).*|rewards/.+|frac_reward_zero_std|clip_ratio/.+|completion_length",
    "verl": r"(critic|actor|timing_s|val-core|val-aux|rollout_corr)/.+|response_length/.+|training/global_step",
    "prime-rl": r"agg/(all|effective)/.+|(completion_len|seq_len|is_truncated)/.+|batch/solve_.+|mismatch_kl/.+"
    r"|progress/ckpt_step|grad\._norm|max\._off-policy_level|max_off-policy|async_level|peak_mem\.",
    "verifiers": r"advantage/absmean|tokens/(completion|masked_fraction)|wall_clock/.+|mismatch_kl",
    "tinker": r"env/.+|optim/kl_sample.*|progress/(done_frac|batch)|kl_policy_base|optim/lr",
    "open-instruct": r"objective/.+|val/sequence_lengths|policy/clipfrac_avg|loss/policy_avg",
    "openrlhf": r"actor_lr|policy_clip_ratio|act_clip_num|actor_grad_norm",
}


def _tells(key: str, trainer: str) -> bool:
    return re.fullmatch(_SIGNS[trainer], key) is not None
