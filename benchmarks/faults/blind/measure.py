"""Write `doctor/findings/measured.toml`: how often each cause was named, and rightly, in blind runs
and in real logs.

    python -m benchmarks.faults.blind.measure a.json [LOGS]

`a.json` is what `score --json` kept of a split; LOGS is a folder of labeled logs as
`benchmarks/logs.py` reads it.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.logs import FOUND_BY, SUPPORTED_BY, log_of, pick

from uptrend.doctor.catalogue import TRIALS_FILE
from uptrend.doctor.diagnose import diagnose

SOURCES = ("records", "scalars")
HEAD = """\
# Written by benchmarks/faults/blind/measure.py: runs in which a cause was named first (named), and rightly (right);
# in which it was planted (planted), and named among the first three (found).
"""


def count(scored: list[dict[str, Any]], logs: Path | None) -> dict[str, Any]:
    """Count by cause and source, and by kind of finding."""
    causes: dict[tuple[str, str], Counter[str]] = {}
    kinds: dict[tuple[str, str], Counter[str]] = {}

    def named(source: str, id: str, basis: str, is_right: bool) -> None:
        for table, key in ((causes, (id, source)), (kinds, (basis, source))):
            table.setdefault(key, Counter()).update(named=1, right=int(is_right))

    for run in scored:
        if run["inert"] or run["kind"] == "twin":
            continue
        for source in SOURCES:
            said = run[source]
            if run["cause"]:
                found = any(f["is_right"] for f in said[:3])
                causes.setdefault((run["cause"], source), Counter()).update(
                    planted=1, found=int(found)
                )
            if said:
                named(source, said[0]["id"], said[0]["basis"], said[0]["is_right"])
    for meta in sorted(logs.glob("*/meta.json")) if logs else ():
        labels = set(json.loads(meta.read_text())["labels"])
        first = next(
            (f for f in diagnose(pick(log_of(meta.parent))).findings if f.severity != "note"), None
        )
        if first is not None:
            backing = {
                label for label, by in FOUND_BY.items() if first.id in by
            } | SUPPORTED_BY.get(first.id, set())
            named("scalars", first.id, str(first.basis), bool(backing & labels))
    return {"kinds": kinds, "causes": causes}


def write(counts: dict[str, Any]) -> None:
    """Write the file."""
    lines = [HEAD]
    for part in ("kinds", "causes"):
        for (name, source), found in sorted(counts[part].items()):
            place = f"kinds.{source}.{name}" if part == "kinds" else f'causes."{name}".{source}'
            told = ", ".join(
                f"{key} = {found[key]}"
                for key in ("named", "right", "planted", "found")
                if key in found
            )
            lines.append(f"{place} = {{ {told} }}")
    TRIALS_FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{TRIALS_FILE}: {len(counts['causes'])} lines of causes")


if __name__ == "__main__":
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    write(count(json.loads(Path(sys.argv[1]).read_text()), folder))
