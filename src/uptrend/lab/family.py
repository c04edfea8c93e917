"""Hypotheses that were judged together stay a family: judged again alone, each is still one of several."""

from collections.abc import Collection
from pathlib import Path

from uptrend.lab.journal.stored import VERDICT, read_verdict
from uptrend.lab.notebook import Notebook
from uptrend.records import Verdict


def relatives(notebook: Notebook, ids: Collection[str]) -> list[Verdict]:
    """The verdicts on record that these hypotheses were adjusted with, of those that are not judged now."""
    folders = sorted((notebook.folder / "experimental-results").glob("h*/"))
    found = {folder.name: verdict for folder in folders if (verdict := _adjusted(folder / VERDICT))}
    if not found.keys() & set(ids):
        return []
    return [verdict for id, verdict in found.items() if id not in ids]


def _adjusted(path: Path) -> Verdict | None:
    """A verdict that was adjusted for the number of its family."""
    verdict, _ = read_verdict(path) or (None, None)
    if verdict is None or all(comparison.p_adjusted is None for comparison in verdict.comparisons):
        return None
    return verdict
