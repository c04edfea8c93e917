"""How often findings were right in trials, from `findings/measured.toml`, and the confidence that
this gives.

The benchmark writes the file: for each cause and source (records, or scalars alone), in how many
runs it was named first and how often rightly, and in how many it was planted and named among the
first three; the same for each kind of finding (its basis and source).
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from uptrend.doctor.catalogue import FOLDER
from uptrend.records import Basis, Confidence

FILE = FOLDER / "measured.toml"
# A cause's own record weighs against that of its kind as if the kind had so many runs; fewer own
# runs are never high.
WEIGHT = 5
# Shares of right findings from which a confidence is high, and medium.
HIGH = 0.9
MEDIUM = 0.6
# A cause whose own share is no more than this, in `WEIGHT` runs at least, is a rival and no
# diagnosis.
RARELY = 0.2


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def record_of(id: str, source: str) -> Mapping[str, int]:
    """Return a cause's counts (`named`, `right`, `planted`, `found`) by records or scalars; empty
    if never tried.
    """
    found: Mapping[str, int] = _table().get("causes", {}).get(id, {}).get(source, {})
    return found


def is_mostly_wrong(id: str, source: str) -> bool:
    """Tell whether another cause lay behind nearly every trial run in which this one was named
    first.
    """
    own = record_of(id, source)
    named = own.get("named", 0)
    right = own.get("right", 0)
    return named >= WEIGHT and right / named <= RARELY


def confidence_of(id: str, basis: Basis, source: str) -> tuple[Confidence, str]:
    """Return the confidence in a finding, and the count behind it in words."""
    own = record_of(id, source)
    kind = _table().get("kinds", {}).get(source, {}).get(basis, {})
    named = own.get("named", 0)
    right = own.get("right", 0)
    of_kind = kind.get("named", 0)
    usual = (kind.get("right", 0) + 1) / (of_kind + 2)
    share = (right + WEIGHT * usual) / (named + WEIGHT)
    level = (
        Confidence.HIGH
        if share >= HIGH
        else Confidence.MEDIUM
        if share >= MEDIUM
        else Confidence.LOW
    )
    if named < WEIGHT and level is Confidence.HIGH:
        level = Confidence.MEDIUM
    if not of_kind:
        return Confidence.MEDIUM if basis is not Basis.SUSPICION else Confidence.LOW, ""
    others = f"findings of its kind in {kind['right']} of {of_kind}"
    if not named:
        return level, f"never named first in a trial; {others}"
    return level, f"right in {right} of {named} trial runs where it was named first, {others}"
