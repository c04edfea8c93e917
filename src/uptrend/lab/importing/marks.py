"""What a line of a journal says, where its form is known: fields, run ids, statuses, figures, settings."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

RUN = r"[a-z0-9]{8}"
NAMED_RUNS = (
    re.compile(rf"[Rr]un ID\**:?\s*`?({RUN})\b"),
    re.compile(rf"\bRun `?({RUN})`?\**(?=\s+(?:achieved|stuck|currently|reached|at)\b)"),
    re.compile(rf"/runs/({RUN})\b"),
)
IN_BRACKETS = re.compile(rf"\(({RUN})\)")
"""A run, where a digit is among the eight or it is known from elsewhere; else a word."""

DATE = re.compile(r"\b(20\d\d-[01]\d-[0-3]\d)")
FIELD = re.compile(r"(?:^|(?<=\|))\s*(?:[-*]\s+)?\*\*([^*:]+?)(?::\*\*|\*\*\s*:)\s*(.*?)\s*(?=$|\|\s*\*\*)")
BARE_FIELD = re.compile(r"\s*[-*]\s+`?([A-Z`][\w `/-]{1,40}?)`?:\s+(\S.*?)\s*$")
ROW = re.compile(r"\s*\|(.+)\|\s*$")

STATUSES = (
    ("partially validated", r"PARTIALLY VALIDATED|✅\s*\**Partial"),
    ("invalidated", r"\bINVALIDATED\b|❌\s*\**Invalidated"),
    ("validated", r"\bVALIDATED\b|\bCONFIRMED\b|✅\s*\**Validated|\bSUCCESS\b"),
    ("failing", r"\bFAILING\b|\bFAILED\b|[Cc]omplete failure|[Ff]ailed completely"),
    ("struggling", r"\bSTRUGGLING\b"),
    ("finished", r"\bFINISHED\b|[Cc]ompleted [Ss]uccessfully"),
    ("testing", r"🧪|\bRUNNING\b|\bRunning\b"),
    ("pending", r"⏳|🆕|\(Planned\)|\bUntested\b|\bProposed\b"),
    ("inconclusive", r"🤔|\bINCONCLUSIVE\b"),
)
"""How journals say where something stands, and the plain word for it; the first that fits counts."""

PRIORITIES = {"critical": "high", "high": "high", "med": "medium", "medium": "medium", "low": "low"}

QUANTITY = r"reward|accuracy|loss|kl divergence|frac_reward_zero_std|throughput|peak memory|total time|container errors"
EXPECTS = re.compile(
    r"\b(expected|should|achieve|reach|success|predicted|goal|barrier|potentially|than|within|vs)\b|[<>]", re.IGNORECASE
)
"""What stands before a number that was hoped for, or another run's, and was not measured here."""
STATED = re.compile(
    rf"((?:[A-Za-z_]+ )*?(?:{QUANTITY}))\b[`*]*\s*(?::|=|\|)[\s*]*([~-]?\d[\d.,]*(?:e-?\d+)?)(\s?%)?", re.IGNORECASE
)
COUNTED = re.compile(
    r"(?<![\w.-])(-?\d+(?:\.\d+)?)(\s?%)?\s+((?:final |training |eval(?:uation)? )?(?:reward|accuracy))\b"
)

SETTING = re.compile(r"(?<![\w-])([A-Za-z_][\w.]*)\s*=\s*(\"[^\"]*\"|'[^']*'|-?\w[\w.+-]*)")
FLAG = re.compile(r"--([a-z][\w-]*)(?:[ =](\"[^\"]*\"|(?!-)[^\s\\]+))?")


@dataclass(frozen=True)
class Figure:
    """A measured number that a journal names."""

    name: str
    """In the journal's words, in lower case."""
    value: float
    """Shares as shares: 30% is 0.3."""
    line: int
    """Where it stands."""


def runs_in(text: str, known: Collection[str] = ()) -> list[str]:
    """Run ids in a text, in order."""
    named = [(match.start(1), match[1]) for pattern in NAMED_RUNS for match in pattern.finditer(text)]
    bracketed = [(match.start(1), match[1]) for match in IN_BRACKETS.finditer(text)]
    likely = [(place, run) for place, run in bracketed if run in known or not (run.isalpha() or run.isdigit())]
    return list(dict.fromkeys(run for _, run in sorted(named + likely)))


def date_in(*texts: str) -> str:
    """The first date in some texts, or nothing."""
    return next((match[1] for text in texts if (match := DATE.search(text))), "")


def fields_in(text: str) -> dict[str, str]:
    """`**Key**: value` pairs of a line, several where bars part them, or `- Key: value`."""
    bold = {match[1].strip(): match[2] for match in FIELD.finditer(text)}
    if bold:
        return bold
    bare = BARE_FIELD.match(text)
    return {bare[1].strip(): bare[2]} if bare else {}


def cells_in(text: str) -> list[str]:
    """The cells of a table's row; nothing for its ruler or for a line that is no row."""
    row = ROW.match(text)
    cells = [cell.strip() for cell in row[1].split("|")] if row else []
    return [] if all(set(cell) <= set("-: ") for cell in cells) else cells


def status_in(text: str) -> str:
    """The plain word for where something stands, or nothing."""
    return next((word for word, pattern in STATUSES if re.search(pattern, text)), "")


def figures_in(text: str, line: int) -> list[Figure]:
    """The measured numbers that a line names."""
    stated = [(match.start(), match[1], match[2], match[3]) for match in STATED.finditer(text)]
    counted = [(match.start(), match[3], match[1], match[2]) for match in COUNTED.finditer(text)] if not stated else []
    found = list[Figure]()
    for start, name, number, percent in (*stated, *counted):
        if EXPECTS.search(text[:start]):
            continue
        digits = number.lstrip("~").rstrip(".,").replace(",", "")
        value = float(digits) / (100 if percent else 1)
        found.append(Figure(" ".join(name.lower().split()), round(value, 10), line))
    return found


def reported(statuses: Sequence[str]) -> str:
    """The one of several statuses that counts: the last that says what came out, or the last."""
    decided = [word for word in statuses if word not in ("testing", "pending", "finished")]
    return (decided or list(statuses) or [""])[-1]


def settings_in(text: str, is_command: bool = False) -> dict[str, str]:
    """Settings that a line or a command gives: lr=5e-6, --lora-r 16."""
    if is_command:
        return {match[1]: (match[2] or "true").strip("\"'") for match in FLAG.finditer(text)}
    own = [match for match in SETTING.finditer(text) if not EXPECTS.search(text[: match.start()])]
    pairs = {match[1]: match[2].strip("\"'").rstrip(".") for match in own}
    return {name: value for name, value in pairs.items() if not re.fullmatch(QUANTITY, name, re.IGNORECASE)}
