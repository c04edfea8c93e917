"""Scripted players of a problem: text files with one command per turn.

A file is named KIND-NAME.txt, with KIND one of expert, weak and cheat; a line `%%` parts its turns.
`{{a|b|c}}` stands for one of the choices, drawn by the example's seed: the same one wherever a file
repeats the list.
"""

import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from uptrend.records import Message, TasksetError
from uptrend.tasks.taskset import Script

CHOICE = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)


@dataclass(frozen=True)
class Player:
    """A scripted player."""

    kind: str  # expert, weak or cheat
    name: str
    text: str

    def turns(self, seed: int) -> list[str]:
        """Return its commands for an example."""
        chance = random.Random(f"{self.name}-{seed}")
        drawn = dict[str, str]()

        def choose(found: re.Match[str]) -> str:
            return drawn.setdefault(found[1], chance.choice(found[1].split("|")))

        return [turn.strip("\n") for turn in CHOICE.sub(choose, self.text).split("\n%%\n")]

    def play(self, seed: int) -> Script:
        """Give one command after the other, whatever is answered."""
        for turn in self.turns(seed):
            yield Message("assistant", turn)


@cache
def read_players(folder: Path) -> tuple[Player, ...]:
    """Read a problem's players, sorted by name."""
    found = []
    for path in sorted(path for path in folder.glob("*.txt") if path.is_file()):
        kind, dash, name = path.stem.partition("-")
        if kind not in ("expert", "weak", "cheat") or not dash:
            raise TasksetError(
                f"{path}: a player's file is named expert-, weak- or cheat-NAME.txt."
            )
        found.append(Player(kind, name, path.read_text(encoding="utf-8").strip("\n")))
    return tuple(found)
