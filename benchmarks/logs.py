"""Score the doctor on a folder of labeled logs: python benchmarks/logs.py FOLDER

Each case is a folder with meta.json (an expert's labels), series.jsonl (decoded points), raw/ with
the log as it was found, or both; the raw file is read where there is one. Printed for each case:
the trend beside the expert's, labels found and missed, and each warning (warning or critical) with
whether a label supports it. tests/data/logs holds invented cases in this layout; logs of public
runs are not shipped.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from uptrend.bridge.importers import read_views
from uptrend.doctor.case import Case
from uptrend.doctor.checks import run_checks
from uptrend.records import Finding, RunView, Severity, TrendKind

DEAD = {"advantage.dead-groups-low", "advantage.dead-groups-high", "reward.constant"}
FOUND_BY = {
    "zero_variance": DEAD,
    "clipped_completions": {"context.completion-truncated", "sampling.no-stop"},
    "kl_negligible": {"kl.strangles", "optimizer.lr-small"},
    "tiny_updates": {"kl.strangles", "optimizer.lr-small", "optimizer.schedule"},
    "kl_runaway": {"kl.runaway"},
    "reward_component_dead": {"reward.component-dead"},
    "saturated": {"advantage.dead-groups-high", "reward.component-dead"},
    "entropy_collapse": {"sampling.entropy-collapse"},
    "reward_hacking_suspected": {"reward.hackable", "reward.component-dominates"},
    "nan": {"run.nonfinite"},
    "collapsed": {"run.collapsed"},
    "too_short_to_tell": {"run.too-short"},
    "length_growth": {"reward.length-hacking"},
    "other:concatenated_restarts": {"run.restarts-concatenated"},
    "other:group_size_1": {"config.group-of-one"},
    "other:entropy_explosion": {"sampling.entropy-explosion"},
    "other:length_collapse": {"sampling.length-collapse"},
    "other:duplicate_components": {"reward.component-dominates"},
    "other:eval_flat": {"reward.hackable", "eval.noise"},
}
"""Findings that say what a label says; a note is enough. Labels that are no finding (learning,
flat) are trends.
"""

SUPPORTED_BY = {
    "optimizer.dead-steps": {"zero_variance"},
    "kl.dead-group-pull": {"zero_variance"},
    "reward.component-dominates": {"reward_hacking_suspected", "reward_component_dead"},
    "reward.length-hacking": {"reward_hacking_suspected", "length_growth"},
    "optimizer.lr-large": {"collapsed", "kl_runaway"},
    "reward.constant": {"zero_variance", "collapsed"},
}
"""Labels that support a warning besides those that it finds."""

STYLES = {
    "learning": TrendKind.LEARNING,
    "flat": TrendKind.FLAT,
    "saturated": TrendKind.FLAT,
    "collapsed": TrendKind.FALLING,
    "too_short_to_tell": TrendKind.TOO_SHORT,
}
"""Trend that a label stands for; learning overrides the rest, because the trend is of the training
reward alone.
"""


@dataclass
class Score:
    """One case, judged."""

    case: str
    trend: str = "unread"
    agrees: bool = False
    found: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def score(folder: Path) -> Score:
    """Read a case and compare."""
    meta = json.loads((folder / "meta.json").read_text())
    result = Score(folder.name)
    try:
        view = pick(log_of(folder))
    except Exception as error:  # an unread log is a result here
        result.trend = f"unread: {error}"
        return result
    case = Case(view)
    findings = [f for f in run_checks(case) if isinstance(f, Finding)]
    trend = case.trend.kind
    labels = set(meta["labels"])
    wanted = expected(meta["labels"])
    result.trend, result.agrees = (
        f"{trend.value} / {'|'.join(sorted(w.value for w in wanted))}",
        trend in wanted,
    )
    ids = {f.id for f in findings}
    for label in meta["labels"]:
        if label in FOUND_BY and not (
            label == "too_short_to_tell" and trend is TrendKind.TOO_SHORT
        ):
            (result.found if ids & FOUND_BY[label] else result.missed).append(label)
        elif label in FOUND_BY:
            result.found.append(label)
    for f in findings:
        if f.severity is not Severity.NOTE:
            backing = {label for label, by in FOUND_BY.items() if f.id in by} | SUPPORTED_BY.get(
                f.id, set()
            )
            (result.right if backing & labels else result.wrong).append(f.id)
    return result


def log_of(folder: Path) -> Path:
    """Find the log as it was found, or the decoded series where it was not kept."""
    raw = (
        sorted(p for p in (folder / "raw").glob("*") if "summary" not in p.name)
        if (folder / "raw").exists()
        else []
    )
    return raw[0] if raw else folder / "series.jsonl"


def pick(log: Path) -> RunView:
    """Choose the run of a log that the case is about: by its arm's name, else the longest."""
    views = read_views(log)
    arms = {v.name for v in views if v.name}
    series = (log.parent.parent if log.parent.name == "raw" else log.parent) / "series.jsonl"
    first = json.loads(series.read_text().splitlines()[0]) if series.exists() else {}
    named = [v for v in views if v.name and v.name == first.get("arm")]
    if len(arms) > 1 and named:
        return named[0]
    return max(views, key=lambda v: len(v.steps))


def expected(labels: list[str]) -> set[TrendKind]:
    """List the trends that do not contradict the expert's labels."""
    if "learning" in labels:
        return {TrendKind.LEARNING}
    return {STYLES[label] for label in labels if label in STYLES}


def main(arguments: list[str]) -> None:
    """Score every case, and sum up: all, and each half, as a rule fitted to one half would show in
    the other.
    """
    if len(arguments) != 1:
        sys.exit("Name one folder of cases: python benchmarks/logs.py FOLDER")
    cases = sorted(path.parent for path in Path(arguments[0]).glob("*/meta.json"))
    if not cases:
        sys.exit(
            f"{arguments[0]} holds no cases: each is a folder in it with a meta.json and a log."
        )
    scores = [score(case) for case in cases]
    for s in scores:
        print(f"{'ok ' if s.agrees else 'NO '} {s.case:36} {s.trend}")
        print(f"     found {', '.join(s.found) or '-'}; missed {', '.join(s.missed) or '-'}")
        print(
            f"     warnings right {', '.join(s.right) or '-'}; not supported {', '.join(s.wrong) or '-'}"
        )
    print(
        f"odd cases:  {totals(scores[::2])}\neven cases: {totals(scores[1::2])}\nall:        {totals(scores)}"
    )


def totals(scores: list[Score]) -> str:
    """Write the figures in one line."""
    read = sum(not s.trend.startswith("unread") for s in scores)
    found, missed = sum(len(s.found) for s in scores), sum(len(s.missed) for s in scores)
    right, wrong = sum(len(s.right) for s in scores), sum(len(s.wrong) for s in scores)
    agree, labels = sum(s.agrees for s in scores), found + missed
    return (
        f"read {read} of {len(scores)}; labels found {found} of {labels} ({found / max(1, labels):.0%}); "
        f"warnings right {right} of {right + wrong} ({right / max(1, right + wrong):.0%}); "
        f"trend {agree} of {len(scores)} ({agree / len(scores):.0%})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
