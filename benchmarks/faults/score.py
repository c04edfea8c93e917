"""From what was said of each case to the figures: ours, from scalars alone, and the peers'."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.judge import Judged, is_among, is_first, is_fixed, judge_case
from benchmarks.faults.mapping import PEERS

from uptrend.doctor.catalogue import CATALOGUE

OWN, SCALARS, ALIKE = "own run", "scalars alone", "scalars, read as peers are"
VLLM = "scalars, TRL with vLLM"
COLUMNS = (OWN, SCALARS, ALIKE, *PEERS, VLLM)


@dataclass(frozen=True)
class Reading:
    """What one reader made of one case."""

    judged: Judged
    """The case."""
    alarms: int
    """How many alarms it raised."""
    first: bool = False
    """Whether the right cause stood first."""
    among: bool = False
    """Whether it was among the first three."""
    fixed: bool = False
    """Whether the first one's fix is right."""
    at: int | None = None
    """After how many steps it spoke."""


def score(folder: Path) -> None:
    """Judge all that was run, have the peers read it too, and write the page beside it."""
    from benchmarks.faults.board import write_board

    cases = {case.parent: judge_case(case.parent) for case in sorted(folder.glob("*/case.json"))}
    if python := os.environ.get("PEERS_PYTHON"):
        subprocess.run([python, str(Path(__file__).parent / "peers.py"), str(folder)], check=True)
    readings: dict[str, list[Reading]] = {column: [] for column in COLUMNS}
    for place, judged in cases.items():
        for column in COLUMNS:
            readings[column] += _read(column, judged, place)
    told = folder / "watched.json"
    text = write_board(readings, json.loads(told.read_text()) if told.exists() else [])
    (folder / "SCOREBOARD.md").write_text(text)
    print(text)


def _read(column: str, j: Judged, folder: Path) -> list[Reading]:
    if column in PEERS:
        file = folder / "peers.json"
        told = json.loads(file.read_text())[column] if file.exists() else None
        return [] if told is None else [_generous(j, told["alarms"], told["at"], PEERS[column])]
    if column == ALIKE:
        offered = {
            id: (id, *(rival.id for rival in cause.rivals)) for id, cause in CATALOGUE.items()
        }
        return [_generous(j, j.scalars.alarms, j.scalars_at, offered)]
    said, at = {
        OWN: (j.full, j.noticed_at),
        SCALARS: (j.scalars, j.scalars_at),
        VLLM: (j.sampled, j.sampled_at),
    }[column]
    count, fault = len(said.alarms), j.fault
    if fault is None:
        return [Reading(j, count, at=at)]
    return [
        Reading(j, count, is_first(said, fault), is_among(said, fault), is_fixed(said, fault), at)
    ]


def _generous(
    j: Judged, alarms: Sequence[str], at: int | None, offers: Mapping[str, Sequence[str]]
) -> Reading:
    """An alarm names whatever its text offers as a reason; a right cause is taken for a right
    fix.
    """
    meant = [frozenset(offers.get(alarm, ())) for alarm in alarms]
    right = j.fault.right if j.fault else frozenset[str]()
    first = bool(meant) and bool(right & meant[0])
    return Reading(j, len(alarms), first, any(right & m for m in meant[:3]), first, at)
