"""A preflight in the terminal: a line a probe, a few rollouts in colors, and findings with their fix."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from uptrend.records import Finding, Role
from uptrend.stats.formatting import duration

if TYPE_CHECKING:
    from uptrend.doctor.probes.result import Piece, Result

COLORS = {"critical": "bold red", "warning": "yellow", "note": "cyan"}
STYLES = {Role.PROMPT: "dim", Role.MODEL: "green", Role.TOOL: "blue"}
WRONG = "bold white on red"
"""For what is trained and should not be, what is not and should, and what attention can't see."""


def print_result(console: Console, result: "Result") -> None:
    """One line, with its mark."""
    if result.skipped:
        console.print(Text(f"– {result.name:14}not asked: {result.skipped}", "dim"), soft_wrap=True)
        return
    mark = ("✓ ", "green") if result.ok else ("✗ ", "bold red")
    line = Text.assemble(mark, f"{result.name:14}", result.figure, (f"  {duration(result.seconds)}", "dim"))
    console.print(line, soft_wrap=True)


def print_rollouts(console: Console, results: Sequence["Result"]) -> None:
    """The rollouts that a probe shows, colored by who wrote what and whether it is trained."""
    shown = [pieces for result in results for pieces in result.printout]
    if not shown:
        return
    legend = Text.assemble(
        "\nRollouts: ", ("prompt", STYLES[Role.PROMPT]), ", ", ("model, trained", STYLES[Role.MODEL]), ", ",
        ("tool", STYLES[Role.TOOL]), ", ", ("trained or hidden by mistake", WRONG),
    )  # fmt: skip
    console.print(legend)
    for pieces in shown:
        console.print(Text.assemble("  ", *(_painted(piece) for piece in pieces)), soft_wrap=True)


def _painted(piece: "Piece") -> tuple[str, str]:
    text = piece.text.replace("\n", "⏎")
    if len(text) > 400:
        text = f"{text[:200]} … {text[-200:]}"
    right = piece.trained == (piece.role is Role.MODEL) and piece.attended
    return text, STYLES[piece.role] if right else WRONG


def finding_lines(findings: Sequence[Finding]) -> Iterator[Text]:
    """Each finding: what it is, what shows it, what it explains, what to do."""
    for finding in findings:
        yield Text.assemble("\n", (f"{finding.severity.value}  {finding.id}", COLORS[finding.severity.value]))
        yield Text(f"  {finding.summary}")
        for evidence in finding.evidence:
            yield Text(f"  · {evidence.text}" + (f" (rollout {evidence.rollout})" if evidence.rollout else ""))
        if finding.explains:
            yield Text(f"  also explains: {', '.join(f.id for f in finding.explains)}")
        if finding.fix is not None and finding.fix.sentence:
            yield Text(f"  fix: {finding.fix.sentence}")
        for key, value in (finding.fix.changes.get("uptrend", {}) if finding.fix else {}).items():
            yield Text(f"       --set {key}={value}")
        yield Text(f"  {finding.page}")
