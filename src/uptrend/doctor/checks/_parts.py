"""The components of a reward as curves: which are about the answer and which about its format."""

import re
from dataclasses import dataclass

import numpy as np

from uptrend.doctor.curves import Curve, course, rollout_spread
from uptrend.records import RunView

_DRESS = re.compile(
    r"format|length|style|structur|xml|tag|json|schema|syntax|compil|pars|think|brev|concise|verbos|diversity|"
    r"penalt|repeti|langu|soft|strict|polite|cosine"
)
_ANSWER = re.compile(
    r"correct|accura|answer|exact|solve|equation|outcome|env|success|win|f1|pass|test|terminal|truth|gold|verif|task|"
    r"trace|action|match|score"
)


NOTHING = 0.1
"""The rise, in deviations between rollouts, that a component which stands still can at most have had."""


@dataclass(frozen=True)
class PartCurve:
    """One component."""

    name: str
    """Its name."""
    mean: Curve
    """Its mean over the rollouts of a step."""
    variance: float
    """The variance that it brings: between rollouts where that was logged, and of its mean over the run."""

    @property
    def is_format(self) -> bool:
        """Whether its name says that it pays for how an answer looks."""
        return bool(_DRESS.search(self.name.lower()))

    @property
    def is_answer(self) -> bool:
        """Whether its name says that it pays for being right."""
        return not self.is_format and bool(_ANSWER.search(self.name.lower()))


def parts_of(view: RunView) -> list[PartCurve]:
    """The components whose means were logged, less those that are differences of others."""
    found = []
    for name in view.parts():
        mean = course(view, f"reward/part/{name}/mean")
        if mean is not None and "_minus_" not in name:
            between = view.curve(f"reward/part/{name}/std")[1]
            inside = float(np.mean(between**2)) if len(between) else 0.0
            found.append(PartCurve(name, mean, inside + float(np.var(mean.values))))
    return found


def surely_still(view: RunView, part: PartCurve) -> bool:
    """Whether noise can't hide a rise that matters."""
    line = part.mean.trend
    return line is not None and not part.mean.rises and line.interval()[1] < NOTHING * rollout_spread(view)
