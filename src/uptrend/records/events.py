"""Events of a run: events.toml has every kind of line in events.jsonl with its fields; here is how they are checked."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

StoppedBy = Literal["user", "doctor", "preflight", "observer"]

STARTS = ("started", "resumed")
ENDS = ("finished", "stopped", "failed")


@dataclass(frozen=True)
class Stop:
    """Wish to end a run after the current step; the run's record keeps it."""

    reason: str
    """One sentence."""
    by: StoppedBy = "observer"
    """Origin of the wish."""
    finding: str = ""
    """Cause that the doctor or the preflight found; empty for others."""

    @property
    def sentence(self) -> str:
        """Reason, after the cause where there is one."""
        return f"{self.finding}: {self.reason}" if self.finding else self.reason

    def to_event(self) -> dict[str, str]:
        """Return the fields of the event `stopped`."""
        return {"stopped_by": self.by, **({"finding": self.finding} if self.finding else {}), "reason": self.reason}


def stop_of(event: Mapping[str, Any]) -> Stop:
    """Read an event of the kind `stopped`."""
    return Stop(str(event.get("reason", "")), event.get("stopped_by", "observer"), str(event.get("finding", "")))


@cache
def event_fields() -> Mapping[str, Mapping[str, str]]:
    """Return the meaning of each field by kind of event."""
    text = resources.files("uptrend.records").joinpath("events.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def check_event(kind: str, values: Mapping[str, Any]) -> None:
    """Assert that an event is one of events.toml, whose fields its readers trust."""
    known = event_fields()
    assert kind in known, f"{kind} is no kind of event: add it to events.toml"
    unknown = [field for field in values if field not in known[kind]]
    assert not unknown, f"the event {kind} has no field {', '.join(unknown)}: add it to events.toml"
