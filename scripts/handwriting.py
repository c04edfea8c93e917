"""Check that the handwriting of src does not slide back: names, tuple assignments, comprehensions, `fmt: skip`.

    python scripts/handwriting.py          # exit 1 above a limit, with the places
    python scripts/handwriting.py --count  # the counts alone

Limits are a tenth above what the code had when they were set. Lines and tokens have none: a longer file that reads at
once is the better file.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
# Names that say what happened to a value, not what it is.
VAGUE_NAMES = frozenset(
    ("told", "said", "found", "given", "shown", "asked", "kept", "heard", "made", "held")
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Places that are printed for one limit.
MAX_PLACES = 20

MAX_VAGUE_NAMES = 10
MAX_TUPLE_ASSIGNMENT_SHARE = 0.0003
MAX_COMPREHENSION_SHARE = 0.0435
MAX_FORMAT_SKIPS = 0
MAX_REPEATED_CONSTANTS = 0


@dataclass
class Counts:
    """Counts over all files, and where each counted thing stands."""

    statements: int = 0
    places: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def share(self, kind: str) -> float:
        """Return the number of a kind of node per statement."""
        return len(self.places[kind]) / max(self.statements, 1)


def count_handwriting(folder: Path) -> Counts:
    """Count what is limited in all Python files of a folder."""
    counts = Counts()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text("utf-8")
        name = path.relative_to(folder).as_posix()
        for node in ast.walk(ast.parse(text)):
            counts.statements += isinstance(node, ast.stmt)
            kind = kind_of(node)
            if kind is not None:
                counts.places[kind].append(f"{name}:{node.lineno}")  # type: ignore[attr-defined]
        for line in format_skips(text):
            counts.places["format skips"].append(f"{name}:{line}")
    return counts


def kind_of(node: ast.AST) -> str | None:
    """Return the kind under which a node is counted, None for most nodes."""
    if isinstance(node, ast.Name) and node.id in VAGUE_NAMES:
        return "vague names"
    if isinstance(node, COMPREHENSIONS):
        return "comprehensions"
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return None
    if any(isinstance(target, ast.Tuple) for target in node.targets):
        return "tuple assignments"
    return None


def format_skips(text: str) -> Iterator[int]:
    """Yield the lines whose comment keeps the formatter away."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and re.search(r"fmt: (skip|off)", token.string):
            yield token.start[0]


def repeated_constants(folder: Path) -> dict[str, list[str]]:
    """Return one-word constants that several modules define, with the places of each."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            else:
                continue
            for target in targets:
                if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z]{2,}", target.id):
                    places[target.id].append(f"{path.relative_to(folder)}:{node.lineno}")
    return {name: lines for name, lines in places.items() if len(lines) > 1}


def main(source: Path = SOURCE) -> int:
    """Print what is above its limit; return 1 where anything is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", action="store_true", help="print the counts and check nothing")
    arguments = parser.parse_args()
    counts = count_handwriting(source)
    repeated = [f"{name}: {', '.join(lines)}" for name, lines in repeated_constants(source).items()]
    measured = {
        "vague names": (len(counts.places["vague names"]), MAX_VAGUE_NAMES),
        "tuple assignments": (counts.share("tuple assignments"), MAX_TUPLE_ASSIGNMENT_SHARE),
        "comprehensions": (counts.share("comprehensions"), MAX_COMPREHENSION_SHARE),
        "format skips": (len(counts.places["format skips"]), MAX_FORMAT_SKIPS),
        "one-word constants of several modules": (len(repeated), MAX_REPEATED_CONSTANTS),
    }
    counts.places["one-word constants of several modules"] = repeated
    failed = False
    for kind, (value, limit) in measured.items():
        if arguments.count:
            print(f"{kind}: {value:.4g} (limit {limit:.4g})")
        elif value > limit:
            failed = True
            print(f"{kind}: {value:.4g}, and the limit is {limit:.4g}.")
            print("  " + "\n  ".join(counts.places[kind][:MAX_PLACES]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
