"""The last thing that the model says: `<think>…</think><cite>1, 2</cite><answer>…</answer>`."""

import re
from dataclasses import dataclass

TAGS = ("think", "cite", "answer")
INSTRUCTIONS = """\
Answer the question from documents that you look up with the tools. Make one tool call a turn. \
When you have found the answer, say it like this:
<think>what you found, step by step</think>
<cite>the IDs of the documents that you used, such as 3, 7</cite>
<answer>the answer alone</answer>"""


@dataclass(frozen=True)
class Reply:
    """What a message says in tags."""

    answer: str | None
    """The text of the last answer; None where there is none."""
    cited: tuple[str, ...]
    """The document IDs of the last citation, each once."""
    format: float
    """The share of the three tags that stand there exactly once, closed; 1 only where they are in order."""


def read_reply(text: str) -> Reply:
    """Take a message apart; tags that are missing or not closed are simply not there."""
    found = {tag: re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in TAGS}
    cited = re.split(r"[,;\s]+", found["cite"][-1]) if found["cite"] else []
    ids = [c.strip("[]#.\"'") for c in cited]
    return Reply(
        answer=found["answer"][-1].strip() if found["answer"] else None,
        cited=tuple(dict.fromkeys(i for i in ids if i)),
        format=_format(text),
    )


def write_reply(think: str, cited: tuple[str, ...], answer: str) -> str:
    """A reply in the format that is asked for."""
    return f"<think>{think}</think>\n<cite>{', '.join(cited)}</cite>\n<answer>{answer}</answer>"


def _format(text: str) -> float:
    # Counted tag by tag, so that a second opening or closing spoils the tag that it belongs to.
    once = [tag for tag in TAGS if text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1]
    marks = [text.index(mark) for tag in once for mark in (f"<{tag}>", f"</{tag}>")]
    whole = sum(text.index(f"<{tag}>") < text.index(f"</{tag}>") for tag in once)
    in_order = marks == sorted(marks)
    return min(whole, len(TAGS) if in_order else len(TAGS) - 1) / len(TAGS)
