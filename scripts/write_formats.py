"""Writes the tables of docs/formats.md from records/dialects.toml: python scripts/write_formats.py"""

import re
from pathlib import Path

from uptrend.records.dialects import LOGGERS, metric_names

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
TABLE = re.compile(r"(?m)^\| its name \| ours \|\n(?:\|.*\n)+")


def with_tables(page: str) -> str:
    """Return the page with the table of each trainer's section made anew."""
    for trainer in LOGGERS:
        rows = [f"| `{theirs}` | `{ours}` |" for theirs, ours in metric_names(trainer).items()]
        table = "\n".join(["| its name | ours |", "|---|---|", *rows, ""])
        head, mark, section = page.partition(f"\n### {trainer}\n")
        if not mark or not TABLE.search(section.partition("\n### ")[0]):
            raise ValueError(f"{PAGE.name} has no section ### {trainer} with a table `| its name | ours |`.")
        page = head + mark + TABLE.sub(lambda _, table=table: table, section, count=1)
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
