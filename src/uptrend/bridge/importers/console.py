"""What a trainer printed: dictionaries among progress bars, verl's `step:1 - key:value`, and `Step 1 | Reward 0.5`.

A terminal may have colored the lines, wrapped them anywhere, and written bars over them; Ray puts a prefix before
each. Settings that were printed are kept as facts.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from uptrend.bridge.importers.evaluations import is_evaluation
from uptrend.bridge.importers.log import Log, Row, number
from uptrend.bridge.importers.printed import printed_facts
from uptrend.bridge.importers.summaries import is_summary_key
from uptrend.bridge.importers.translation import translate
from uptrend.stats.formatting import plural

_COLOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RAY = re.compile(r"^\([A-Za-z_.:]+ (?:pid|ip)=[^)]*\)\s?", re.MULTILINE)
_NUMERAL = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|NaN|Infinity)"
_DICTIONARY = re.compile(r"\{\s*['\"][^{}]*(?:\}|\Z)")
_PAIR = re.compile(
    rf"['\"]([^'\"{{}}]+)['\"]\s*:\s*(?:[\w.]+\()?['\"]?(\d+/\d+|{_NUMERAL}|None|null)['\"]?(?:(?:,[^()'{{}}]*)?\))?\s*(?=[,}}]|\Z)"
)
# A bar without a description is the training's own; others say what they load.
_BAR = re.compile(r"(?:^|[\r\n\]])[ \t]*\d+%(?:\|[^|\r\n]*\|)?\s+(\d+)/(\d+) \[\d+:\d\d")
_STEP = re.compile(r"\b(?:step|iteration|iter|update)\s*[:=#]?\s*\[?(\d+)\b", re.IGNORECASE)
_LABELED = re.compile(rf"([A-Za-z][\w./@ -]*?)\s*[:=\s]\s*({_NUMERAL})\s*(%?)")
_REWARD = ("reward/mean", "loss/total")
_SETTINGS = ("num_generations", "max_steps", "max_tokens", "top_p", "seed")


def read_console(text: str) -> Log | None:
    """The metrics among everything that was printed; None where there are none."""
    text = text.replace("\r\n", "\n")
    text = _COLOR.sub("", text) if "\x1b" in text else text
    text = _RAY.sub("", text) if "pid=" in text or "ip=" in text else text
    dictionaries, torn, start = _dictionaries(text)
    lines, first = _lines(text.replace("\n - ", " - "))
    if not dictionaries and not lines:
        return None
    rows, begin = (lines, first) if len(lines) > len(dictionaries) else (dictionaries, start)
    facts = printed_facts(text, begin)
    last, planned = _progress(text, len(rows), facts.get("max_steps"))
    if planned:
        facts["max_steps"] = planned
    notes = [f"{plural(len(rows), 'row')} of metrics found among what was printed."]
    if torn and rows is dictionaries:
        notes.append("The last dictionary is cut off and was left out.")
    return Log(rows, facts=facts, last_step=last, notes=notes)


def _dictionaries(text: str) -> tuple[list[Row], bool, int]:
    """The printed dictionaries that hold metrics, whether the last was cut off, and where the first begins."""
    rows: list[Row] = []
    torn, start = False, 0
    for match in _DICTIONARY.finditer(text):
        row = _parsed(match.group())
        if not _are_metrics(tuple(row)):
            continue
        torn = not match.group().endswith("}")
        start = start if rows else match.start()
        if not torn:
            rows.append(row)
    return rows, torn, start


def _parsed(text: str) -> Row:
    """A printed dictionary; a terminal wraps in the middle of a word, so the pieces belong together as they are."""
    text = text.replace("\r", "").replace("\n", "") if "\n" in text or "\r" in text else text
    try:
        found = json.loads(text.replace("'", '"'))
    except ValueError:  # nan, None, np.float64(…), an apostrophe, or torn
        return {key.strip(): value if "/" in value else number(value) for key, value in _PAIR.findall(text)}
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=1024)
def _are_metrics(names: tuple[str, ...]) -> bool:
    """Whether at least two of the names are metrics; a printed config or an answer of the model has none."""
    ours = [translate(name, "trl") for name in names]
    if not any(name in _REWARD for name in ours) and any(name in _SETTINGS for name in names):
        return False
    others = sum(is_evaluation(name) or is_summary_key(name) for name in names)
    return sum(name is not None for name in ours) + others >= 2


def _lines(text: str) -> tuple[list[Row], int]:
    """Lines that say which step they are of, with two numbers that have a name (verl: one); and where the first is."""
    rows: list[Row] = []
    first = at = 0
    for line in text.replace("\r", "\n").split("\n"):
        here, at = at, at + len(line) + 1
        found = None if line.lstrip()[:1] in ("{", "'") else _STEP.search(line)
        if found is None or line[max(0, found.start() - 6) : found.start()].strip().lower() == "micro":
            continue
        rest = line[found.end() :]
        is_verl = rest.startswith(" - ")
        row = dict(_dashed(rest) if is_verl else _labeled(rest))
        if len(row) >= 2 - is_verl and any(translate(key, "prime-rl") is not None or is_evaluation(key) for key in row):
            first = first if rows else here
            rows.append({"step": int(found.group(1)), **row})
    return rows, first


def _dashed(text: str) -> Iterator[tuple[str, float]]:
    """`critic/score/mean:0.5 - actor/lr:np.float64(1e-06)`, as verl prints."""
    for piece in text.replace("np.float64(", "").replace("np.float32(", "").split(" - "):
        key, _, value = piece.rstrip(") ").rpartition(":")
        try:
            yield (key, float(value)) if key[-1:] != ")" else _scaled(key, float(value))
        except ValueError:
            continue


def _scaled(key: str, value: float) -> tuple[str, float]:
    """Old verl prints `actor/lr(1e-4):0.010`: the value in units of what the brackets hold."""
    name, _, unit = key.rstrip(")").rpartition("(")
    return name, value * float(unit)


def _labeled(text: str) -> Iterator[tuple[str, float | None]]:
    """`| Reward: 0.5 | Grad. Norm 0.1`, `, reward=0.5, loss=0.1`: a label and its number, with or without a sign."""
    for piece in re.split(r"[|,;]|\s(?=[A-Za-z_/]+=)", text):
        for label, numeral, percent in _LABELED.findall(piece):
            value = number(numeral)
            yield label.strip(), value / 100 if percent and value is not None else value


def _progress(text: str, rows: int, planned: int | None) -> tuple[int, int]:
    """How far the training's progress bar came, and its end: the bar that moved most among those long enough."""
    seen: Counter[int] = Counter()
    furthest: dict[int, int] = {}
    moves = _BAR.findall(text) if "it/s" in text or "s/it" in text else []
    for at, end in moves:
        seen[int(end)] += 1
        furthest[int(end)] = max(furthest.get(int(end), 0), int(at))
    long_enough = [end for end in seen if furthest[end] >= rows - 1]
    if not long_enough:
        return 0, 0
    end = planned if planned in long_enough else max(long_enough, key=lambda total: seen[total])
    return furthest[end], end
