"""Make the outputs that README and the first pages show, by running the commands above them.

    python scripts/doc_outputs.py            run all, and write what they print into the pages
    python scripts/doc_outputs.py --to DIR   the same in a folder that is kept, to look at the runs

In these pages a text block right below a bash block is what its commands print. `...` on a line of
its own leaves out lines, and at the end of a line what follows on it. Pages are run in order in one
folder, since later ones read the runs of earlier ones; a comment `<!-- not run: why -->` before a
block leaves it out. tests/test_docs.py runs the same blocks shortened (`SHORTER`) and compares
words and lines; numbers, times and curves may differ.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST_PAGES = [
    ROOT / "docs" / "start" / f"{name}.md"
    for name in ("install", "data", "read", "doctor", "prove")
]
PAGES = [ROOT / "README.md", *FIRST_PAGES]
LONGEST_COMMAND_S = 3600

# What shortens a command whose output is not written down: fewer tasks, steps, probes.
FEW = "--set learning.steps=4 --set learning.warmup=0"
SMALL = "--set sampling.groups=8 --set eval.tasks=40 --set doctor.live=false --no-preflight"
TRAIN = "uptrend train recipes/tiny.toml"
MORE_ARGUMENTS = {
    TRAIN: FEW,
    f"{TRAIN} --set learning.lr=1e-4 --set seed=1 --name slower": f"{FEW} {SMALL}",
    f"{TRAIN} --set learning.lr=3e-3 --set learning.steps=30 --name too-fast": SMALL,
    "uptrend train sums/recipe.toml": (
        "--set learning.steps=2 --set sampling.max_tokens=8 --set doctor.live=false"
    ),
    "uptrend preflight recipes/tiny.toml": "--only gold --only masks",
}
EXPERIMENT = "uptrend lab run h01 --dir debug"
FEWER_SEEDS = (
    "s/^seeds = [^#]*/seeds = [0, 1] /; s/^alpha = 0.05/alpha = 0.3/; s/^steps = 0/steps = 10/"
)
SHORTER = {command: f"{command} {more}" for command, more in MORE_ARGUMENTS.items()}
SHORTER[EXPERIMENT] = f"sed -i '{FEWER_SEEDS}' debug/hypotheses/*.md && {EXPERIMENT}"

BLOCK = re.compile(
    r"(?P<left_out><!-- not run: [^>]+ -->\n)?"
    r"```bash\n(?P<commands>.*?)```\n"
    r"(?:\n```text\n(?P<shown>.*?)```\n)?",
    re.DOTALL,
)
# What another machine prints differently: ids, curves, times, counts of equal rewards, numbers, and
# how a sampled answer and its group turned out.
NUMBER = r"[+−-]?(?:\d+(?:[.,]\d+)*|\.\d+)(?:e[+-]?\d+)?%?"
VARYING = re.compile(
    r"\b[0-9a-f]{12,}\b"
    r"|[▁-█]+"
    rf"|{NUMBER} (?:h|min|s|ms)\b(?: \d+ (?:min|s)\b)?"
    rf"|{NUMBER} ×\d+(?:, {NUMBER} ×\d+)*"
    rf"|(?<![\w.]){NUMBER}"
    r"|\b(?:alive|dead|right|wrong)\b"
)


@dataclass(frozen=True)
class Block:
    """Commands of a page, and the lines that it shows of their output; None where it shows none."""

    page: Path
    commands: list[str]
    shown: list[str] | None


class CommandFailed(Exception):  # noqa: N818 (what happened)
    """A command of a page that ended with an error."""


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks of a page that are run."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if match["left_out"] is None:
            shown = None if match["shown"] is None else match["shown"].splitlines()
            yield Block(page, match["commands"].splitlines(), shown)


def prepare_folder(folder: Path) -> dict[str, str]:
    """Put what the commands need into a folder; return the environment to run them in."""
    for name in ("recipes", "examples", "benchmarks", "tests"):
        (folder / name).symlink_to(ROOT / name)
    for name, words in {"uptrend": "-m uptrend", "python": ""}.items():
        script = folder / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    sums = [(a, b) for a in range(21) for b in range(5)]
    rows = [{"question": f"Calculate: {a}+{b} = ", "answer": str(a + b)} for a, b in sums]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "questions.jsonl").write_text(lines, encoding="utf-8")
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",  # or what goes to stdout comes after what goes to stderr
        "COLUMNS": "1000",  # a line that wraps would wrap elsewhere when its numbers change
    }


def run_block(
    block: Block, folder: Path, environment: dict[str, str], *, shortened: bool
) -> list[str]:
    """Run the commands of a block; return the lines that they print."""
    printed = []
    for line in block.commands:
        command = re.sub(r"\s+# .*", "", line)
        if shortened:
            command = SHORTER.get(command, command)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            text=True,
            check=False,
            timeout=LONGEST_COMMAND_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            raise CommandFailed(f"{block.page.name}: {command}\n{done.stdout[-4000:]}")
        printed += [text.rstrip() for text in done.stdout.splitlines()]
    return printed


def refresh(shown: list[str], printed: list[str]) -> list[str] | None:
    """Return the lines that a page shows with today's numbers; None where words or lines differ."""
    # Lines that follow each other, with something left out between the parts.
    parts: list[list[str]] = [[]]
    for line in shown:
        if line == "...":
            parts.append([])
        else:
            parts[-1].append(line)

    fresh: list[str] = []
    place = 0
    for number, part in enumerate(parts):
        if number > 0:
            fresh.append("...")
        starts = range(place, len(printed) - len(part) + 1)
        if number == 0:
            starts = starts[:1]  # nothing is left out before it
        elif number == len(parts) - 1 and part:
            starts = starts[-1:]  # nor after the last
        for start in starts:
            lines = [_refresh_line(*pair) for pair in zip(part, printed[start:], strict=False)]
            if None not in lines:
                break
        else:
            return None
        fresh += [line for line in lines if line is not None]
        place = start + len(part)
    is_whole = place == len(printed) or not parts[-1]
    return fresh if is_whole else None


def _refresh_line(shown: str, printed: str) -> str | None:
    start = shown.removesuffix("...")
    words = [r"\s+".join(map(re.escape, re.split(r"\s+", text))) for text in VARYING.split(start)]
    match = re.match(f"(?:{VARYING.pattern})".join(words), printed)
    if match is None:
        return None
    if start != shown:
        return match[0] + "..."
    return printed if match.end() == len(printed) else None


def write_output(block: Block, lines: list[str]) -> None:
    """Write lines below a block of its page, in place of those that it shows."""
    assert block.shown is not None
    text = block.page.read_text(encoding="utf-8")
    commands = "".join(f"{line}\n" for line in block.commands)
    head = f"```bash\n{commands}```\n\n```text\n"
    old, new = ("".join(f"{line}\n" for line in part) for part in (block.shown, lines))
    assert text.count(head + old) == 1, f"{block.page.name} has this block twice: {commands}"
    block.page.write_text(text.replace(head + old, head + new), encoding="utf-8")


def main() -> int:
    """Run the pages and write their outputs; return how many blocks have other words now."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, help="a new folder to run in, which is kept")
    to = parser.parse_args().to
    if to is not None:
        to.mkdir(parents=True)
    changed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = to or Path(temporary)
        environment = prepare_folder(folder)
        for block in (block for page in PAGES for block in blocks(page)):
            begun = time.monotonic()
            printed = run_block(block, folder, environment, shortened=block.shown is None)
            seconds = time.monotonic() - begun
            print(f"{block.page.name}  {seconds:.0f} s  {'; '.join(block.commands)}", flush=True)
            if block.shown is None:
                continue
            lines = refresh(block.shown, printed)
            if lines is None:
                changed += 1
                print("  The page had other words: leave out with ... what no reader needs.")
            write_output(block, printed if lines is None else lines)
    return changed


if __name__ == "__main__":
    sys.exit(main())
