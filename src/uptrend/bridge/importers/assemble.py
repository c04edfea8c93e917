"""A log made into views: one a run."""

from typing import Any

import numpy as np

from uptrend.bridge.importers.columns import Columns, columns_of, constants, translated
from uptrend.bridge.importers.facts import config_of, setting_words
from uptrend.bridge.importers.log import Log, flatten
from uptrend.bridge.importers.meaning import derive, drop_uncomputed, name_reward, settle_ratio, settle_spread
from uptrend.bridge.importers.repeats import without_repeats
from uptrend.bridge.importers.segments import Segment, segments_of
from uptrend.bridge.importers.steps import by_run
from uptrend.records.dialects import plain_name, recognize, translate
from uptrend.records.renamed import names
from uptrend.records.view import RunView


def views_of_log(log: Log, source: str) -> list[RunView]:
    """The runs of a log, in the order in which it has them."""
    log.rows = [flatten(row) if dict in map(type, row.values()) else row for row in log.rows]
    _unpack_progress(log)
    views: list[RunView] = []
    for part in by_run(log):
        segments = segments_of(part)
        views.extend(_view(part, segment, source) for segment in segments)
    return views


def _unpack_progress(log: Log) -> None:
    """ms-swift counts as `'global_step/max_steps': '12/500'`."""
    for row in log.rows:
        done, _, planned = str(row.pop("global_step/max_steps", "")).partition("/")
        if done.isdigit() and planned.isdigit():
            row["global_step"] = int(done)
            log.facts.setdefault("max_steps", int(planned))


def settings_alone(log: Log, source: str) -> RunView:
    """A view without a point: a file that holds settings or a summary, and no curve."""
    note = "It holds settings or a summary, and no curve."
    config = config_of(log.facts, log.trainer)
    return RunView(source, "unknown", log.name, np.zeros(0, dtype=np.int64), {}, config=config, notes=(note,))


def _view(log: Log, segment: Segment, source: str) -> RunView:
    notes, old_metrics = list(log.notes), names("metrics")
    points, times = without_repeats(segment.points)
    if times > 1:
        notes.append(f"Each value was written {times} times over; the distinct ones were kept.")
    points = dict(sorted(points.items()))
    points = {step: {old_metrics.get(key, key): value for key, value in row.items()} for step, row in points.items()}
    columns, nonfinite = columns_of(points)
    trainer = log.trainer or recognize([*columns, *(key for entry in segment.evals for key in entry)])
    sources, unknown = translated(columns, trainer)
    metrics = {ours: columns[theirs] for ours, theirs in sources.items()}
    derive(metrics, columns, trainer)
    notes += [
        *drop_uncomputed(metrics, sources),
        *settle_spread(metrics, columns, trainer),
        *settle_ratio(metrics, columns, sources),
        *name_reward(metrics, unknown, sources, trainer),
    ]
    return RunView(
        source=source,
        trainer=trainer if trainer != "plain" else "unknown",
        name=log.name,
        steps=np.array(list(points), dtype=np.int64),
        metrics=metrics,
        nonfinite={ours: nonfinite[key] for ours, key in sources.items() if key in nonfinite and ours in metrics},
        evals=tuple(segment.evals),
        config=_config(log, columns, metrics, trainer, notes),
        unknown={key: values for key, values in unknown.items() if translate(key, trainer) is None},
        notes=tuple(notes),
        runs_in_log=log.runs,
    )


def _config(log: Log, columns: Columns, metrics: Columns, trainer: str, notes: list[str]) -> dict[str, Any]:
    """Gather settings from facts, from columns that never change, and from the curves themselves."""
    fixed = {key: value for key, value in constants(columns).items() if plain_name(key) in setting_words()}
    for moving in ("learning_rate", "lr", "response_length", "beta"):
        fixed.pop(moving, None)
    config = config_of(fixed | log.facts, trainer)
    rates = metrics.get("optimizer/lr")
    if rates is not None and np.isfinite(rates).any():
        highest = float(np.nanmax(rates))
        learning = config.setdefault("learning", {})
        learning["lr"] = max(learning.get("lr", highest), highest)
    limit = _length_limit(metrics)
    if limit and "max_tokens" not in config.get("sampling", {}):
        config.setdefault("sampling", {})["max_tokens"] = limit
        notes.append(f"The completion limit is taken to be {limit} tokens: completions that were cut have that length.")
    return config


def _length_limit(metrics: Columns) -> int:
    """The length at which completions are cut, where the longest of every cut step has one length."""
    longest, cut = metrics.get("sampling/length/max"), metrics.get("sampling/ended/length/share")
    if longest is None or cut is None:
        return 0
    lengths = longest[np.isfinite(longest) & (cut > 0)]
    return int(lengths[0]) if len(lengths) >= 3 and bool((lengths == lengths[0]).all()) else 0
