"""The Results block of a hypothesis's file: the verdict first, then its figures, pictures and runs."""

from collections.abc import Sequence
from pathlib import Path

from uptrend.lab.journal.entry import Entry
from uptrend.lab.journal.tables import METHODS, arms_table, differences, runs_table
from uptrend.lab.journal.verdicts import caveats, confidence, headline, what_is_compared
from uptrend.records import Hypothesis, Verdict


def results(h: Hypothesis, verdict: Verdict, entry: Entry, pictures: Sequence[Path], place: str) -> str:
    """The block's Markdown; `place` is the way from the file to the hypothesis's results."""
    lines = [f"**{headline(h, verdict)}**", "", verdict.sentence, ""]
    lines += [f"> {caveat}\n" for caveat in caveats(verdict)]
    lines += [f"Confidence {confidence(verdict)}.", ""]
    if verdict.comparisons:
        lines += [what_is_compared(h), "", arms_table(h, verdict).to_markdown(), "", METHODS, ""]
    lines += [f"![{_caption(picture)}]({place}/{picture.name})\n" for picture in pictures]
    lines += [f"{entry.date.partition('T')[0]}, `{entry.command}`. {made_on(entry)}", ""]
    lines += [f"- {arm}: `{changes}`" for arm, changes in differences(entry)] + [""] * bool(entry.differences)
    lines += [f"> {note}\n" for note in entry.notes]
    if entry.runs:
        lines += [runs_table(h.metric, entry.runs).to_markdown(), ""]
    hashed = f", specification `{verdict.specification[:10]}`" if verdict.specification else ""
    return "\n".join([*lines, f"All figures: [verdict.json]({place}/verdict.json){hashed}."])


def made_on(entry: Entry) -> str:
    """Version and machine, in a sentence."""
    said = ", ".join(part for part in (f"Uptrend {entry.version}" if entry.version else "", entry.machine) if part)
    return f"{said}." if said else ""


def _caption(picture: Path) -> str:
    return {"curves": "Curves by arm", "intervals": "Effects with their intervals"}.get(picture.stem, picture.stem)
