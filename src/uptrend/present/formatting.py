"""Formatting of numbers, shares, durations, counts, tables and pages for people: one function per
kind.

A missing or undefined value is `–`. Minus signs are typographic (−), except in settings, which are
copied into configs.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import category

NO_VALUE = "–"
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")
# Folder of the package, with its templates.
PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
# Size from which a number has no decimals, and one from which it is in scientific notation.
MIN_WHOLE = 1000
MIN_SCIENTIFIC = 1e6


def number(value: float | None) -> str:
    """Format a number with three significant digits: 0.312, 42, 12,346."""
    if value is None or math.isnan(value):
        return NO_VALUE
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    is_whole = isinstance(value, int) or abs(value) >= MIN_WHOLE
    text = f"{value:,.0f}" if is_whole and abs(value) < MIN_SCIENTIFIC else f"{value:.3g}"
    return text.replace("-", "−")


def percent(share: float | None, digits: int = 1, trim: bool = False) -> str:
    """Format a share: 37.5%; trimmed, 95% and 97.5%."""
    if share is None or not math.isfinite(share):
        return NO_VALUE
    text = f"{100 * share:.{digits}f}"
    if trim and "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text}%"


def level(value: float | None, is_share: bool) -> str:
    """Format a metric's value: 31.2% for a share, 0.312 otherwise."""
    return percent(value) if is_share else number(value)


def change(value: float, is_share: bool = False) -> str:
    """Format a difference with its sign: +0.063, or +6.3 (percentage points) for a share; 0 has no
    sign.
    """
    if math.isnan(value):
        return NO_VALUE
    text = f"{100 * value:.1f}" if is_share and math.isfinite(value) else number(value)
    text = text.replace("-", "−")
    is_zero = text.strip("−0.") == ""
    if is_zero:
        return text.removeprefix("−")
    return text if text.startswith("−") else f"+{text}"


def interval(low: float, high: float, is_share: bool = False) -> str:
    """Format the interval of a difference: +2.1 to +10.5."""
    if math.isnan(low) or math.isnan(high):
        return NO_VALUE
    return f"{change(low, is_share)} to {change(high, is_share)}"


def estimate(value: float, low: float, high: float, is_share: bool = True) -> str:
    """Format a level with its interval: 37.5% (31.0–45.2), or 0.333 (0.06–0.792)."""
    ends = [level(end, is_share).removesuffix("%") for end in (low, high)]
    return f"{level(value, is_share)} ({ends[0]}–{ends[1]})"


def p_value(p: float | None) -> str:
    """Format a p-value: .009, .42, < .001, 1."""
    if p is None or math.isnan(p):
        return NO_VALUE
    if p < 0.001:
        return "< .001"
    if p >= 0.995:
        return "1"
    decimals = 3 if p < 0.0995 else 2
    return f"{p:.{decimals}f}".removeprefix("0")


def duration(seconds: float | None) -> str:
    """Format a duration in one or two units: 0.8 s, 42 s, 4 min 10 s, 2 h 5 min."""
    if seconds is None or not math.isfinite(seconds):
        return NO_VALUE
    if seconds < 9.95:  # what one decimal rounds to less than 10
        return f"{seconds:.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    if round(seconds) < 3600:
        return _two_units(round(seconds), "min", "s")
    return _two_units(round(seconds / 60), "h", "min")


def _two_units(count: int, large: str, small: str) -> str:
    """Format a count of small units, 60 of which make a large one; no small ones if none remain."""
    text = f"{count // 60:,} {large}"
    rest = count % 60
    return f"{text} {rest} {small}" if rest else text


def size(count: float) -> str:
    """Format a number of bytes: 1.2 MB."""
    power = int(math.log(max(1, count), 1000) + 1e-9)  # the log of 1000 may fall short of 1
    power = min(power, len(BYTE_UNITS) - 1)
    decimals = 0 if power == 0 else 1
    return f"{count / 1000**power:.{decimals}f} {BYTE_UNITS[power]}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: 1 point, 20 points."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def setting(value: Any, quote: bool = True) -> str:
    """Format a config value as in a TOML file, a table as JSON, and None as `none`.

    Without `quote`, strings have no quotes, for tables and sentences.
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


# Characters that a shell would not take as a part of a word.
SHELL_SYNTAX = re.compile(r"[\[\]\"{} ]")


def shell_assignment(key: str, value: Any) -> str:
    """Format a config key with its value for `--set`, in quotes where a shell needs them."""
    text = f"{key}={value if isinstance(value, str) else json.dumps(value)}"
    return f"'{text}'" if SHELL_SYNTAX.search(text) else text


# Unicode categories of control characters, of format characters (some reverse the text behind them)
# and of half surrogate pairs.
HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs")


def visible(text: str) -> str:
    """Format a text for a terminal: escapes and other control characters are written as \\x1b."""
    parts = []
    for character in text:
        is_hidden = category(character) in HIDDEN_CATEGORIES and character not in "\n\t"
        parts.append(ascii(character)[1:-1] if is_hidden else character)
    return "".join(parts)


def cell(text: str) -> str:
    """Format a text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format rows of texts as a Markdown table."""
    lines = []
    for row in (head, *rows):
        lines.append("| " + " | ".join(cell(text) for text in row) + " |")
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join(lines)


def render(template: str, **values: Any) -> str:
    """Return a page from a template, named by its path in the package, such as
    `doctor/templates/report.html`.

    Values are escaped in HTML, so that no text of a run can become markup.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PACKAGE_FOLDER),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,  # a misspelled name is an error, not an empty string
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)
