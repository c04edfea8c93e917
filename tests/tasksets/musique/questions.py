"""Rows in MuSiQue's schema for tests: invented ones, and the three official ones in
tests/data/musique.
"""

import copy
import json
from pathlib import Path
from typing import Any

OFFICIAL = Path(__file__).parents[2] / "data" / "musique" / "train_3.jsonl"

ROW: dict[str, Any] = {
    "id": "2hop__1_2",
    "question": "Where was the author of Amber Tides born?",
    "answer": "Elhaven",
    "answer_aliases": ["Old Elhaven"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Gray Sails", "paragraph_text": "Tor Vale wrote Gray Sails.", "is_supporting": False},
        {"idx": 1, "title": "Amber Tides", "paragraph_text": "Mira Kel wrote Amber Tides.", "is_supporting": True},
        {"idx": 2, "title": "Tor Vale", "paragraph_text": "Tor Vale was born in Renstad.", "is_supporting": False},
        {"idx": 3, "title": "Mira Kel", "paragraph_text": "Mira Kel was born in Elhaven.", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 1, "question": "Who wrote Amber Tides?", "answer": "Mira Kel", "paragraph_support_idx": 1},
        {"id": 2, "question": "#1 >> place of birth", "answer": "Elhaven", "paragraph_support_idx": 3},
    ],
}  # fmt: skip


def row(**changes: Any) -> dict[str, Any]:
    """Change some keys of the row above; None removes one."""
    changed = {**copy.deepcopy(ROW), **changes}
    return {key: value for key, value in changed.items() if value is not None}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a file of JSON lines."""
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path
