"""How hypotheses and their files are called."""

import re
import unicodedata
from pathlib import Path


def slug(title: str) -> str:
    """A title as a few lower-case words joined by hyphens."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return "-".join(re.findall(r"[a-z0-9]+", plain)[:7]) or "hypothesis"


def normal_id(id: str) -> str:
    """h03 of H3, 3, h03 or h03-kl-penalty.md."""
    match = re.fullmatch(r"[hH]?(\d+)(?:-.*)?", Path(id).name)
    return f"h{int(match[1]):02d}" if match else id


def place(path: Path) -> tuple[int, str]:
    """By what files are put in order: h9 before h10."""
    match = re.match(r"h(\d+)", path.name)
    return int(match[1]) if match else 0, path.name
