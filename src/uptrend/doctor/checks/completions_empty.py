"""context.prompt-truncated from scalars: completions of no tokens at all, at every step.

A model that answers says at least its stop token. Where not one completion of a step has a token, none was ever begun:
the prompt left no room in the window, or was refused.
"""

from uptrend.doctor.check import Outcome, finding
from uptrend.records import Confidence, Evidence, RunView, Severity

ID = "context.prompt-truncated"
LENGTH = "sampling/length/mean"
FEWEST = 3


def check(view: RunView) -> Outcome:
    """Look at lengths that are 0 throughout."""
    steps, lengths = view.curve(LENGTH)
    if len(lengths) < FEWEST or lengths.any():  # the check of prompts says what is lacking
        return []
    text = "No completion has a single token: prompts leave no room for an answer, or are refused."
    shown = Evidence(f"Length 0 at each of {len(lengths)} steps.", 0.0, LENGTH, int(steps[0]))
    return [finding(view, ID, Severity.CRITICAL, Confidence.MEDIUM, text, [shown])]
