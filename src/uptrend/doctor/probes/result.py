"""What a probe says: one line with its figure, findings where something is wrong, and why it was not asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from uptrend.records import Finding, Role


@dataclass(frozen=True)
class Piece:
    """Tokens in a row that are alike, as text, for a print-out in colors."""

    text: str
    """What they say."""
    role: Role
    """Who wrote them."""
    trained: bool
    """Whether the loss trains them."""
    attended: bool
    """Whether attention may see them."""


@dataclass(frozen=True)
class Result:
    """What came of one probe."""

    name: str = ""
    """The probe's name; the runner fills it in."""
    ok: bool = True
    """Whether nothing was found that warns."""
    figure: str = ""
    """One line with the number that it turns on."""
    seconds: float = 0.0
    """How long it took."""
    findings: tuple[Finding, ...] = ()
    """What it found."""
    skipped: str = ""
    """Why it was not asked; empty where it was."""
    printout: tuple[tuple[Piece, ...], ...] = ()
    """Rollouts to show, in pieces."""


def told(figure: str, findings: Sequence[Finding] = (), printout: tuple[tuple[Piece, ...], ...] = ()) -> Result:
    """A probe's answer; notes leave it ok."""
    ok = all(finding.severity == "note" for finding in findings)
    return Result(ok=ok, figure=figure, findings=tuple(findings), printout=printout)


def not_asked(reason: str) -> Result:
    """A probe that does not apply."""
    return Result(skipped=reason)
