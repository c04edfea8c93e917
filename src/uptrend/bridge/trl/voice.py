"""Who can say what was found: the findings log beside the trainer, or a line to it from the process that records."""

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Protocol, TextIO

from uptrend.records import Confidence, Evidence, Severity


class Voice(Protocol):
    """Says what was found."""

    def say(
        self, id: str, severity: Severity, confidence: Confidence, summary: str, evidence: Sequence[Evidence]
    ) -> None:
        """One finding."""


class Upward:
    """Tells the trainer's process, a line of JSON each: findings, events, failures, and steps that are written."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, **line: Any) -> None:
        """Write one line; where nobody listens any more, the files are still worth writing."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(line, ensure_ascii=False), file=self._out, flush=True)

    def say(
        self, id: str, severity: Severity, confidence: Confidence, summary: str, evidence: Sequence[Evidence]
    ) -> None:
        """A finding."""
        self.tell(finding=[id, severity, confidence, summary, [dataclasses.asdict(e) for e in evidence]])

    def event(self, kind: str, **values: Any) -> None:
        """Something for events.jsonl, which only the trainer's process writes."""
        self.tell(event=[kind, values])


def say_again(voice: Voice, told: list[Any]) -> None:
    """Say a finding that came as a line."""
    id, severity, confidence, summary, evidence = told
    voice.say(id, Severity(severity), Confidence(confidence), summary, [Evidence(**e) for e in evidence])
