"""Numbers, shares, durations, counts, tables and pages as people read them: one function per
decision.

A missing or undefined value is `–`. Minus signs are typographic (−), except in settings, which are
copied into configs.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import category

NONE = "–"
BYTES = ("B", "kB", "MB", "GB", "TB")
# Folder of the package, below which templates lie.
ROOT = Path(__file__).resolve().parents[1]


def number(value: float | None) -> str:
    """Format a number with three significant digits: 0.312, 42, 12,346."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    is_whole = isinstance(value, int) or abs(value) >= 1000
    return (f"{value:,.0f}" if is_whole and abs(value) < 1e6 else f"{value:.3g}").replace("-", "−")


def percent(share: float | None, digits: int = 1, trim: bool = False) -> str:
    """Format a share: 37.5%; trimmed, 95% and 97.5%."""
    if share is None or not math.isfinite(share):
        return NONE
    text = f"{100 * share:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if trim and '.' in text else text}%"


def level(value: float | None, is_share: bool) -> str:
    """Format a metric's value: 31.2% for a share, 0.312 otherwise."""
    return percent(value) if is_share else number(value)


def change(value: float, is_share: bool = False) -> str:
    """Format a difference with its sign: +0.063, or +6.3 (points of a hundred) for a share; 0 has
    none.
    """
    if math.isnan(value):
        return NONE
    text = f"{100 * value:.1f}" if is_share and math.isfinite(value) else number(value)
    text = text.replace("-", "−")
    if text.strip("−0.") == "":
        return text.removeprefix("−")
    return text if text.startswith("−") else f"+{text}"


def interval(low: float, high: float, is_share: bool = False) -> str:
    """Format the interval of a difference: +2.1 to +10.5."""
    return (
        NONE
        if math.isnan(low) or math.isnan(high)
        else f"{change(low, is_share)} to {change(high, is_share)}"
    )


def estimate(value: float, low: float, high: float, is_share: bool = True) -> str:
    """Format a level with its interval: 37.5% (31.0–45.2), or 0.333 (0.06–0.792)."""
    ends = (percent(end).rstrip("%") if is_share else number(end) for end in (low, high))
    return f"{level(value, is_share)} ({'–'.join(ends)})"


def p_value(p: float | None) -> str:
    """Format a p-value: .009, .42, < .001, 1."""
    if p is None or math.isnan(p):
        return NONE
    if p < 0.001:
        return "< .001"
    return "1" if p >= 0.995 else f"{p:.{3 if p < 0.0995 else 2}f}".removeprefix("0")


def duration(seconds: float | None) -> str:
    """Format a duration in one or two units: 0.8 s, 42 s, 4 min 10 s, 2 h 5 min."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    count, unit, rest = (
        (round(seconds), "min", "s") if round(seconds) < 3600 else (round(seconds / 60), "h", "min")
    )
    return f"{count // 60:,} {unit}" + (f" {count % 60} {rest}" if count % 60 else "")


def size(count: float) -> str:
    """Format a number of bytes: 1.2 MB."""
    power = min(len(BYTES) - 1, int(math.log(max(1, count), 1000) + 1e-9))
    return f"{count / 1000**power:.{min(1, power)}f} {BYTES[power]}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: 1 point, 20 points."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def setting(value: Any, quote: bool = True) -> str:
    """Format a config value as a TOML file has it, where it is no table; `none` where there is
    none.

    Without `quote`, text stands bare, for tables and sentences.
    """
    if value is None:
        return "none"
    if isinstance(value, str) and value and not quote:
        return value
    is_plain = isinstance(value, bool | int | float | str | list | tuple | Mapping)
    return json.dumps(value, ensure_ascii=False) if is_plain else str(value)


def assignments(settings: Mapping[str, Any]) -> str:
    """Format config keys with their values in one line."""
    return ", ".join(f"{key} = {setting(value)}" for key, value in settings.items())


def visible(text: str) -> str:
    """Format a text that a terminal must not obey: escapes and other control characters are shown
    as \\x1b.
    """
    hidden = ("Cc", "Cf", "Cs")  # the second has marks that reverse what follows
    return "".join(ascii(c)[1:-1] if category(c) in hidden and c not in "\n\t" else c for c in text)


def cell(text: str) -> str:
    """Format a text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format rows of texts as a Markdown table."""
    lines = ["| " + " | ".join(cell(text) for text in line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def render(template: str, **values: Any) -> str:
    """Return a page from a template, named by its path in the package:
    `doctor/templates/report.html`.

    HTML is escaped by itself, so that no text of a run can become markup.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,  # a misspelled name is an error, not an empty string
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)
