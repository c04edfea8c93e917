"""The experiments log: one dated entry a verdict, appended and never taken away."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uptrend.lab import blocks
from uptrend.lab.journal.entry import Entry
from uptrend.lab.journal.results import made_on
from uptrend.lab.journal.tables import differences
from uptrend.lab.journal.verdicts import caveats, confidence, headline, level, span
from uptrend.records import Comparison, Hypothesis, Verdict
from uptrend.stats.formatting import duration, plural

ENTRY = "entry"
"""The first word of an entry's block; the hypothesis and the date follow."""
IMPORTED = "imported"
"""Of one that another journal brought, and the folder of what else it brought."""


@dataclass(frozen=True)
class Logged:
    """One piece of the log: an entry of the machine's, one that was imported, or what people wrote between them."""

    name: str
    """Its block's name, such as `entry h01 2026-11-15` or `imported 1f`; empty for people's text."""
    text: str
    """Its Markdown."""

    @property
    def is_imported(self) -> bool:
        """Whether it was brought from another journal."""
        return self.name.startswith(f"{IMPORTED} ")


def add(text: str, h: Hypothesis, verdict: Verdict, entry: Entry, place: str, notes: Sequence[str]) -> str:
    """The log with one more entry at its end; the same verdict at the same second is the same entry."""
    return blocks.put(text, f"{ENTRY} {h.id} {entry.date}", render(h, verdict, entry, place, notes))


def render(h: Hypothesis, verdict: Verdict, entry: Entry, place: str, notes: Sequence[str]) -> str:
    """An entry's Markdown: verdict, command, configuration, outcome."""
    day, _, time = entry.date.partition("T")
    lines = [f"## {headline(h, verdict)} ({h.id.upper()}, {day})", "", verdict.sentence, ""]
    lines += [f"> {caveat}\n" for caveat in caveats(verdict)]
    lines += ["- **Command**:", "", "  ```bash", f"  {entry.command}", "  ```", ""]
    lines += [f"- **Configuration**: `{entry.recipe}`; {_differ(h, entry)}"]
    lines += [f"- **Runs**: {_runs(entry)}"] if entry.runs else []
    lines += [f"- **Outcome**, {c.arm}: {outcome(h, c)}" for c in verdict.comparisons]
    lines += [f"- **Confidence**: {confidence(verdict)}"]
    lines += [f"- **Note**: {note}" for note in (*entry.notes, *notes)]
    zone = " UTC" if time.endswith(("Z", "+00:00")) else ""
    lines += [f"- **When and where**: {day} {time[:5]}{zone}. {made_on(entry)}".rstrip()]
    return "\n".join([*lines, f"- **All figures**: [{place}]({place})"])


def outcome(h: Hypothesis, c: Comparison) -> str:
    """One comparison in a line: from the control's mean to the arm's, the effect's interval, and what it says."""
    levels = f"{level(h.metric, c.control_mean)} → {level(h.metric, c.arm_mean)}"
    return f"{levels} over {plural(len(c.seeds), 'seed')}, effect {span(h, c.interval)}: {c.status}"


def _differ(h: Hypothesis, entry: Entry) -> str:
    arms = "; ".join(f"{arm}: `{changes}`" for arm, changes in differences(entry))
    return f"control {h.control.name}; {arms or 'arms as in the hypothesis'}"


def _runs(entry: Entry) -> str:
    ended = [run.status for run in entry.runs]
    counted = ", ".join(f"{ended.count(status)} {status}" for status in dict.fromkeys(ended))
    worked = sum(run.seconds or 0.0 for run in entry.runs)
    took = f", {duration(worked)} of work" if worked else ""
    return f"{counted}{took}"


def pieces(path: Path) -> list[Logged]:
    """The log as its entries and what people wrote between them, in order."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    found, at = list[Logged](), 0
    for name in blocks.names(text):
        start = text.index(blocks.opening(name), at)
        found += [Logged("", text[at:start].strip()), Logged(name, (blocks.get(text, name) or "").strip())]
        at = text.index(blocks.closing(name), start) + len(blocks.closing(name))
    found.append(Logged("", text[at:].strip()))
    return [piece for piece in found if piece.text]
