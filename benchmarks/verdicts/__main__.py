"""How often verdicts are wrong, measured on simulated experiments: python -m benchmarks.verdicts
[EXPERIMENTS]

Prints the Markdown of ../VERDICTS.md. What is simulated, and which truth an interval must cover:
simulated.py.
"""

import platform
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np
import scipy
from benchmarks.verdicts.beside import beside_table
from benchmarks.verdicts.learning import learning_table
from benchmarks.verdicts.markdown import percent, rate
from benchmarks.verdicts.outcomes import (
    INVALIDATED,
    SMALLEST,
    VALIDATED,
    Outcomes,
    disagreements,
    outcomes,
)
from benchmarks.verdicts.page import PAGE
from benchmarks.verdicts.simulated import Setting
from benchmarks.verdicts.together import together_table

import uptrend
from uptrend.present.formatting import markdown_table

SEEDS, DEVIATIONS, EFFECTS = (5, 8, 16), (0.02, 0.03, 0.05), (0.0, 0.025, SMALLEST, 0.1)
CHECKED = 40
"""How many experiments a setting are also given to the judge one by one."""
CELL = ["seeds", "deviation, points"]
FIRST = [
    *CELL,
    "false validated at 0, %",
    "false invalidated at 5 points, %",
    "seeds' interval covers, %",
]
FIRST += [
    "seeds' and tasks' interval covers, %",
    "power planned, %",
    "power printed, %",
    "power found, %",
]
OTHERS = [
    *CELL,
    "effect, points",
    "validated, planned / found, %",
    "invalidated, planned / found, %",
]
EARLY = [*CELL, "false validated at 0, %", "false invalidated at 5 points, %", "power found, %"]
EARLY += ["seeds used at 0", "at 5 points", "at 10 points"]
COLLAPSES = ["seeds", "false validated at 0, %", "invalidated at 0, %", "seeds' interval covers, %"]

ByEffect = Mapping[float, Outcomes]


def after_all_seeds(by: ByEffect, too: Outcomes) -> list[str]:
    """Errors, coverage and power."""
    null, least = by[0.0], by[SMALLEST]
    covered = np.concatenate([null.covered, least.covered])
    powers = [
        percent(least.foreseen(SMALLEST)[0]),
        percent(least.printed_power),
        rate(least.verdict == VALIDATED),
    ]
    errors = [rate(null.verdict == VALIDATED), rate(least.verdict == INVALIDATED)]
    return [*errors, rate(covered), rate(too.covered_too), *powers]


def at_other_effect(found: Outcomes) -> list[str]:
    """Both verdicts, as planned and as found."""
    effect = found.setting.effect
    shares = [float((found.verdict == kind).mean()) for kind in (VALIDATED, INVALIDATED)]
    pairs = zip(found.foreseen(effect), shares, strict=True)
    return [
        f"{100 * effect:g}",
        *(f"{percent(planned)} / {percent(share)}" for planned, share in pairs),
    ]


def with_early_stops(by: ByEffect) -> list[str]:
    """Errors and power where the sequence may end it, and the seeds that were used."""
    null, least = by[0.0], by[SMALLEST]
    used = [f"{by[effect].used.mean():.1f}" for effect in (0.0, SMALLEST, 0.1)]
    return [
        rate(null.early == VALIDATED),
        rate(least.early == INVALIDATED),
        rate(least.early == VALIDATED),
        *used,
    ]


def verdict_tables(experiments: int) -> dict[str, str]:
    """After all seeds, at other effects, and with early stopping."""
    first, others, early = [], [], []
    for seeds, deviation in ((seeds, deviation) for seeds in SEEDS for deviation in DEVIATIONS):
        cell = [str(seeds), f"{100 * deviation:g}"]
        by = {
            effect: outcomes(Setting(seeds, deviation, effect), experiments) for effect in EFFECTS
        }
        too = outcomes(
            Setting(seeds, deviation, SMALLEST, on_these_tasks=False), experiments, seed=1
        )
        first.append([*cell, *after_all_seeds(by, too)])
        others += [[*cell, *at_other_effect(by[effect])] for effect in (0.025, 0.1)]
        early.append([*cell, *with_early_stops(by)])
    return {
        "first": markdown_table(FIRST, first),
        "others": markdown_table(OTHERS, others),
        "early": markdown_table(EARLY, early),
    }


def collapse_table(experiments: int) -> str:
    """What an interval over seeds cannot do: an arm that collapses now and then."""
    rows = []
    for seeds in SEEDS:
        found = outcomes(Setting(seeds, 0.03, 0.0, collapses=0.1), experiments)
        shares = [found.verdict == VALIDATED, found.verdict == INVALIDATED, found.covered]
        rows.append([str(seeds), *(rate(share) for share in shares)])
    return markdown_table(COLLAPSES, rows)


def check_against_judge() -> tuple[int, int]:
    """How many experiments the judge was given one by one, and in how many it said otherwise."""
    settings = [Setting(seeds, 0.03, effect) for seeds in SEEDS for effect in (0.0, SMALLEST)]
    return CHECKED * len(settings), sum(disagreements(setting, CHECKED) for setting in settings)


def main() -> None:
    """Prints the page."""
    experiments = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    figures = verdict_tables(experiments) | {
        "together": together_table(experiments),
        "beside": beside_table(experiments),
        "learning": learning_table(experiments),
        "collapse": collapse_table(experiments),
    }
    checked, wrong = check_against_judge()
    packages = (
        f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}"
    )
    page = PAGE.format(
        **figures,
        **{"experiments": experiments, "checked": checked, "wrong": wrong},
        when=datetime.now(UTC).date().isoformat(),
        packages=f"{packages}, Uptrend {uptrend.__version__}",
        minutes=time.process_time() / 60,
    )
    print(page, end="")


if __name__ == "__main__":
    main()
