"""The prose of a new hypothesis's file."""

from collections.abc import Mapping
from typing import Any

from uptrend.config.toml_text import to_toml
from uptrend.doctor.catalogue import CATALOGUE, Cause
from uptrend.lab import blocks
from uptrend.records import Finding, Hypothesis

NOTHING_YET = blocks.put("", "results", "Nothing was run yet.").strip()
"""The machine's block, so that the first verdict takes its place."""

TO_FILL_IN = {
    "Description": "*What might be wrong, in a few sentences. Name the setting, the figure, and where you saw it.*",
    "Why it explains the behavior": "*If it holds: why does the run look as it does? What else would you then see?*",
    "Validation method": "*Which arm differs in what, and why nothing else differs. What does the metric miss?*",
    "Invalidation criteria": "*Which result would make you drop it? Write it before you run anything.*",
    "Results": NOTHING_YET,
}
"""What to write in each section, where nobody has yet."""


def prose(h: Hypothesis, cause: Cause, finding: Finding | None = None) -> dict[str, str]:
    """The sections for a cause of the catalogue, with what the doctor saw where it was found in a run."""
    return {
        "Description": _joined(cause.what, *(_seen(finding) if finding else ())),
        "Why it explains the behavior": _why(cause),
        "Validation method": method(h, cause.experiment.probe),
        "Invalidation criteria": criteria(h),
        "Results": NOTHING_YET,
    }


def _why(cause: Cause) -> str:
    """What it would bring with it, and what looks the same."""
    symptoms = [f"- `{id}`: {CATALOGUE[id].what}" for id in cause.explains]
    rivals = [f"- `{rival.id}`: {rival.tells_apart}" for rival in cause.rivals]
    return _joined(
        f"If it holds, an experiment shows it: {cause.experiment.claim}",
        "It would also explain:" if symptoms else "",
        "\n".join(symptoms),
        "What looks the same, and what tells it apart:" if rivals else "",
        "\n".join(rivals),
    )


def _seen(finding: Finding) -> tuple[str, str]:
    """What the doctor found, and its evidence."""
    told = f"The doctor found it ({finding.severity}, {finding.confidence} confidence): {finding.summary}"
    return told, "\n".join(f"- {piece.text}" for piece in finding.evidence)


def method(h: Hypothesis, probe: str = "") -> str:
    """Which arms are compared by what, and the command."""
    arms = [
        f"- **{arm.name}**{' (the control)' if arm.is_control else ''}: {_changes(arm.overrides)}" for arm in h.arms
    ]
    asks = f"A probe asks the same without training: `uptrend preflight {h.recipe} --only {probe}`." if probe else ""
    told = f"`{h.metric}` at the end of the run is compared over {len(h.seeds)} seeds, on `{h.recipe}`:"
    return _joined(told, "\n".join(arms), asks, f"```bash\nuptrend lab run {h.id}\n```")


def criteria(h: Hypothesis) -> str:
    """What would validate it and what would rule it out, in words."""
    where = {"up": "higher", "down": "lower", "either": "otherwise"}[h.direction]
    return (
        f"Validated if the arm ends {where}: `{h.validated_if}`. Invalidated if an effect of {h.smallest:g} or more is "
        f"excluded: `{h.invalidated_if}`. Anything between is inconclusive, and more seeds are asked for."
    )


def _changes(overrides: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {to_toml(value)}`" for key, value in overrides.items()) or "the recipe as it is"


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
