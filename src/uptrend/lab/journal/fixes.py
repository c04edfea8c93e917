"""Changes that a validated hypothesis calls for: as an override of ours, and in other trainers' words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uptrend.config.difference import nest
from uptrend.config.toml_text import to_recipe, to_toml
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.report import TRAINERS
from uptrend.doctor.resolve import complete_fix
from uptrend.lab.journal.entry import Entry
from uptrend.lab.journal.tables import MarkdownTable, changed
from uptrend.lab.journal.verdicts import decisive, level, sign_of
from uptrend.lab.units import interval_text, name_of
from uptrend.records import Comparison, Direction, Hypothesis, Status, Verdict, dialects
from uptrend.records.metrics import find_metric
from uptrend.stats.formatting import assignments, markdown_table, percent, plural

NONE = "no setting of this name"


@dataclass(frozen=True)
class ConfigChange:
    """From one side of a comparison to the better one."""

    before: str
    """The arm to leave."""
    after: str
    """The arm to go to."""
    values: Mapping[str, Any]
    """Config values by dotted key that lead there."""
    comparison: Comparison
    """Evidence for it."""


def change_of(h: Hypothesis, verdict: Verdict, entry: Entry) -> ConfigChange | None:
    """The change that a validated hypothesis calls for; none where it is not, or where no config value differs."""
    if verdict.status is not Status.VALIDATED or verdict.void:
        return None
    best = decisive(h, verdict)
    if best is None:
        return None
    to_arm = _arm_is_better(h, best)
    values = changed(entry, best.arm, to_control=not to_arm)
    sides = (h.control.name, best.arm) if to_arm else (best.arm, h.control.name)
    return ConfigChange(*sides, values, best) if values else None


def _arm_is_better(h: Hypothesis, c: Comparison) -> bool:
    """Of held-out figures and rewards the higher is better; of the rest, what was claimed is what is wanted."""
    metric = find_metric(h.metric)
    if metric is not None and metric.better == "more":
        return c.arm_mean >= c.control_mean
    return h.direction is not Direction.EITHER or c.interval.effect > 0


def to_override(h: Hypothesis, change: ConfigChange) -> str:
    """The values as a part of a recipe."""
    gone = [key for key, value in change.values.items() if value is None]
    head = f"# {h.id.upper()}: {' '.join(h.title.split())}\n# Put these values into a recipe; {change.after}.\n"
    lines = "".join(f"# Leave out {key}.\n" for key in gone if not any(key.startswith(f"{k}.") for k in gone))
    return f"{head}{lines}\n{to_recipe(nest(change.values))}"


def to_page(h: Hypothesis, verdict: Verdict, entry: Entry, change: ConfigChange, name: str, picture: str) -> str:
    """The fix as a page: what to change, what came of it, and how to do it elsewhere."""
    c = change.comparison
    sets = " ".join(f"--set '{key}={to_toml(v)}'" for key, v in change.values.items() if v is not None)
    means = (c.control_mean, c.arm_mean) if change.before == h.control.name else (c.arm_mean, c.control_mean)
    lines = [
        f"# {change.after} instead of {change.before}",
        "",
        f"{h.id.upper()} holds: {h.title}. {verdict.sentence}",
        "",
        markdown_table(
            (name_of(h.metric), f"before: {change.before}", f"after: {change.after}"),
            [
                (f"mean over {plural(len(c.seeds), 'seed')}", *(level(h.metric, mean) for mean in means)),
                (f"effect, {percent(c.level, trim=True)} interval", "", _gain(h, change)),
            ],
        ),
        "",
    ]
    lines += [f"![Before and after]({picture})", ""] if picture else []
    lines += ["## In Uptrend", "", f"[{name}.toml]({name}.toml), or on the command line:", ""]
    lines += ["```bash", f"uptrend train {entry.recipe} {sets}".rstrip(), "```", ""]
    lines += ["## In other trainers", "", _elsewhere(change).to_markdown(), ""]
    return "\n".join([*lines, *_cataloged(h), *_scope(entry)])


def _gain(h: Hypothesis, change: ConfigChange) -> str:
    """The effect's interval as one meets it who makes the change."""
    to_arm = change.before == h.control.name
    return interval_text(h.metric, change.comparison.interval, sign_of(h) * (1 if to_arm else -1))


def _elsewhere(change: ConfigChange) -> MarkdownTable:
    head = ("Uptrend", *(TRAINERS[name] for name in dialects.TRAINERS))
    rows = [
        (f"`{assignments({key: value})}`", *(_said(key, value, trainer, change) for trainer in dialects.TRAINERS))
        for key, value in change.values.items()
    ]
    return MarkdownTable(head, tuple(rows))


def _said(key: str, value: Any, trainer: str, change: ConfigChange) -> str:
    """A setting of ours as another trainer writes it, or that it can't."""
    found = dialects.to_theirs(key, value, trainer, change.values.get) or dialects.Assignment({})
    told = f"`{assignments(found.settings)}`" if found.settings else NONE
    return told + (f" ({found.note})" if found.note else "")


def _cataloged(h: Hypothesis) -> list[str]:
    """Return the catalogue's advice on the cause, which may be more than was tested."""
    if h.cause not in CATALOGUE:
        return []
    fix = complete_fix(CATALOGUE[h.cause].fix)
    lines = [f"## What else the catalogue says of `{h.cause}`", "", fix.sentence, ""]
    told = [f"- {TRAINERS.get(who, who)}: `{assignments(keys)}`" for who, keys in fix.changes.items() if keys]
    return [*lines, *told, "", "These values were not tested here; those above were.", ""] if told else lines


def _scope(entry: Entry) -> list[str]:
    made = f" with Uptrend {entry.version}" if entry.version else ""
    return [f"Shown for `{entry.recipe}` and its tasks{made}; not tested in other trainers.", ""]
