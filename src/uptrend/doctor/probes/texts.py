"""Texts as they are compared: what a person would call the same question."""

import re

from uptrend.records import Task


def question(task: Task) -> str:
    """A task's question without case, spaces and punctuation that carry nothing; instructions left out."""
    said = " ".join(m.content for m in task.messages if m.role != "system") or task.messages[0].content
    return " ".join(re.sub(r"[?!.,;:\"'`]+(?=\s|$)", " ", said.lower()).split())
