"""Metrics among what a trainer printed: dictionaries, verl's `step:1 - key:value`, and lines of
`name: number` pairs.

A terminal may have colored the lines, wrapped them anywhere, and written bars over them; Ray and
launchers put a prefix before each. Lines without a step and numbers in prose are left out on
purpose: a number is a metric only where a name and a sign stand before it and nothing clings to it.
Times, sizes, versions, dates and fractions are none.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from uptrend.bridge.importers.readers import Log, LogFile, Row, parse_number, stride_for
from uptrend.bridge.importers.runs import is_evaluation
from uptrend.bridge.importers.settings import printed_settings
from uptrend.present.formatting import plural
from uptrend.records.dialects import is_bookkeeping, matches, names_for, translate

_LARGE = 2_000_000  # characters
_MOST_ENTRIES = 200_000  # lines of metrics that are held at a time, about 1 kB each
_COLOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RAY = re.compile(r"^\([A-Za-z_.:]+ (?:pid|ip)=[^)]*\)\s?", re.MULTILINE)
_NUMERAL = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|NaN|Infinity)"
_DICTIONARY = re.compile(r"\{\s*['\"][^{}]*(?:\}|\Z)")
_PAIR = re.compile(
    rf"['\"]([^'\"{{}}]+)['\"]\s*:\s*(?:[\w.]+\()?['\"]?(\d+/\d+|{_NUMERAL}|None|null)['\"]?(?:(?:,[^()'{{}}]*)?\))?\s*(?=[,}}]|\Z)"
)
# A bar without a description is the training's own; others say what they load.
_BAR = re.compile(r"(?:^|[\r\n\]])[ \t]*\d+%(?:\|[^|\r\n]*\|)?\s+(\d+)/(\d+) \[\d+:\d\d")
_STEP = re.compile(
    r"\b(?:(?:global|train|training)[ _])?(?:step|iteration|iter|update)\s*[:=#]?\s*\[?(\d+)\b",
    re.IGNORECASE,
)
_COUNT = re.compile(r"(?<![\w./-])(?<!\d:)(\d+)\s*/\s*(\d+)(?![\w/%-]|[.:]\d)")
_EPOCH = re.compile(r"\bepoch\s*[:=#]?\s*[\[(]?\s*(\d+)(?:\s*/\s*(\d+))?", re.IGNORECASE)
# What may stand before a count of steps, and what says that something else is counted.
_OPENS = re.compile(
    r"(?:^|[(\[|\])>]|\s-|\b(?:batch|it|episode|rollout|prompt|sample)s?\s*[:=#]?)\s*$",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"\b(?:eval|val|valid|test|load|map|download|tokeniz|filter|generat|warm|micro)", re.IGNORECASE
)
_STAMP = re.compile(
    r"[\[(]?(?:\b\d{4}[-/]\d\d[-/]\d\d[T ]?)?\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?Z?\b[\])]?"
    r"|\b\d{4}[-/]\d\d[-/]\d\d\b|\b(?:DEBUG|INFO|SUCCESS|WARN(?:ING)?|ERROR|CRITICAL)\b:?"
)
_PROCESS = re.compile(
    r"^\s*(?:\[?(?:local[_ ]?)?(?:rank|default|gpu|process|proc|worker)["
    r" _:=#-]*(\d+)\b\]?[:|,]?|(\d{1,4}):(?=\s))",
    re.IGNORECASE,
)
_SIGNED = re.compile(
    r"(?<![\w./@-])['\"]?([A-Za-z][\w./@-]*(?:"
    r" [A-Za-z(][\w./@()-]*){0,4})['\"]?\s*[:=]\s*(?:[\w.]+\()?['\"]?"
    rf"({_NUMERAL})(?:(%)(?!\|)|(?!%))(?!\.?\w|[:/-]\d|,\d{{3}}(?!\d)|\s*(?:[KMGT]i?B|bytes)\b)"
)
_LABELED = re.compile(rf"([A-Za-z][\w./@ -]*?)\s*[:=\s]\s*({_NUMERAL})\s*(%?)")


def read_console(file: LogFile) -> list[Log] | None:
    """Return the metrics among everything that was printed; None where there are none."""
    text = file.console().replace("\r\n", "\n")
    text = _COLOR.sub("", text) if "\x1b" in text else text
    text = _RAY.sub("", text) if "pid=" in text or "ip=" in text else text
    dictionaries, is_torn, start, every = _dictionaries(text)
    # Looking for both takes minutes in a large file; dictionaries are the surer of the two.
    is_done = len(text) > _LARGE and len(dictionaries) > 10
    lines, first, total, stretch = (
        ([], 0, 0, 1)
        if is_done
        else _lines(text.replace("\n - ", " - "), with_bars=not dictionaries)
    )
    if not dictionaries and not lines:
        return None
    # A script may print both; the more frequent are the training's.
    is_lines = len(lines) > len(dictionaries)
    rows, begin = (lines, first) if is_lines else (dictionaries, start)
    facts = printed_settings(text, begin)
    last, planned = _progress(text, len(rows), facts.get("max_steps"))
    planned = planned or (total if is_lines else 0)
    if planned:
        facts["max_steps"] = planned
    notes = [f"{plural(len(rows), 'row')} of metrics found among what was printed."]
    if every > 1 and not is_lines:
        last = last or every * len(rows)
        notes = [*notes, f"Every {every}th dictionary was read."]
    if is_torn and not is_lines:
        notes.append("The last dictionary is cut off and was left out.")
    return [
        Log(rows, facts=facts, last_step=last, notes=tuple(notes), every=stretch if is_lines else 1)
    ]


def _dictionaries(text: str) -> tuple[list[Row], bool, int, int]:
    """Return the dictionaries that hold metrics, if the last was cut off, where the first begins,
    and the stride.
    """
    rows: list[Row] = []
    is_torn = False
    start = 0
    # a list of them takes more memory than the text
    every = stride_for(sum(1 for _ in _DICTIONARY.finditer(text)))
    for match in islice(_DICTIONARY.finditer(text), 0, None, every):
        # A terminal wraps in the middle of a word, so the pieces are joined as they are.
        printed = match[0].replace("\r", "").replace("\n", "")
        try:
            row: Row = json.loads(printed.replace("'", '"'))
        except (ValueError, RecursionError):  # nan, None, np.float64(…), an apostrophe, or torn
            pairs = _PAIR.findall(printed)
            row = {
                key.strip(): value if "/" in value else parse_number(value) for key, value in pairs
            }
        if not _are_metrics(tuple(row)):
            continue
        is_torn = not match[0].endswith("}")
        start = start if rows else match.start()
        if not is_torn:
            # Not further back than a line is long: a search for \r through all of a large file
            # takes minutes.
            floor = max(0, match.start() - 1000)
            line_begin = (
                max(floor - 1, *(text.rfind(end, floor, match.start()) for end in "\n\r")) + 1
            )
            place = _place(text[line_begin : match.start()])
            is_counted = any(
                (is_bookkeeping(key) and "step" in key) or key == "global_step/max_steps"
                for key in row
            )
            # The step may stand on the line before the dictionary; a bar may lag behind.
            rows.append(
                row if is_counted or place is None or place.is_bar else {"step": place.step, **row}
            )
    return rows, is_torn, start, every


@lru_cache(maxsize=1024)
def _are_metrics(names: tuple[str, ...]) -> bool:
    """Return True where at least two names are metrics; a printed config or an answer of the model
    has none.
    """
    ours = [translate(name, "trl") for name in names]
    has_result = "reward/mean" in ours or "loss/total" in ours
    if not has_result and not set(names).isdisjoint(names_for("printed_settings")):
        return False
    others = sum(is_evaluation(name) or matches(name, "summary") for name in names)
    return sum(name is not None for name in ours) + others >= 2


@dataclass(frozen=True)
class _Place:
    """Step that a line is of, as printed."""

    step: int  # step; within the epoch where there is one
    total: int = 0  # number of steps, likewise; 0 where it is not said
    epoch: int | None = None  # epoch, counted from 0 or 1
    epochs: int = 1  # number of epochs
    is_bar: bool = False  # true where a progress bar says it
    end: int = 0  # end of the characters of the line that say it


def _place(head: str) -> _Place | None:
    """Find the step in the part of a line before its metrics: `step 7`, else `(7/9751)`, `[7/9751]`
    or `7/9751`.
    """
    found = _STEP.search(head)
    if found is not None:
        is_micro = head[max(0, found.start() - 6) : found.start()].strip().lower() == "micro"
        return None if is_micro else _Place(int(found[1]), end=found.end())
    epoch = _EPOCH.search(head)
    for count in _COUNT.finditer(head):
        before = head[: count.start()]
        is_of_epoch = epoch is not None and epoch.start() < count.start() < epoch.end()
        is_behind = int(count[1]) > int(count[2])
        if is_of_epoch or is_behind or _ASIDE.search(before) or not _OPENS.search(before):
            continue
        of, ofs = (int(epoch[1]), int(epoch[2] or 1)) if epoch is not None else (None, 1)
        return _Place(int(count[1]), int(count[2]), of, ofs, "%|" in before, count.end())
    if epoch is not None and epoch[2]:
        return _Place(int(epoch[1]), int(epoch[2]), end=epoch.end())
    return None


def _lines(text: str, with_bars: bool) -> tuple[list[Row], int, int, int]:
    """Return rows of lines that say their step, where the first begins, the steps planned, and n of
    every n-th line.
    """
    kinds = {"step": _Entries(), "count": _Entries(), "bar": _Entries()}
    owner: dict[int, str] = {}
    for here, line in _each_line(text.replace("\r", "\n")):
        process = _PROCESS.match(line)
        line = line[process.end() :] if process else line
        found = None if line.lstrip()[:1] in ("{", "'") else _line(line)
        if found is None:
            continue
        place, row = found
        # Several processes print the same step, and not in order: the first to print it counts.
        if (
            process
            and owner.setdefault(place.step if len(owner) < _MOST_ENTRIES else -1, process[0])
            != process[0]
        ):
            continue
        kinds["bar" if place.is_bar else "count" if place.total else "step"].add((place, row, here))
    # Lines that say `step 7` and those that say `7/9751` are not mixed: whichever are more count.
    # Bars show numbers that may lag behind, and are read only where nothing else is.
    most = max(kinds["step"], kinds["count"], key=lambda entries: entries.count)
    most = most if most.kept or not with_bars else kinds["bar"]
    best = most.kept
    if not best:
        return [], 0, 0, 1
    ((usual, _),) = Counter(place.total for place, _, _ in best).most_common(1)
    best = [entry for entry in best if entry[0].total == usual]
    # Epochs are counted from 0 or from 1.
    base = min((place.epoch for place, _, _ in best if place.epoch is not None), default=0)
    rows = [
        {"step": p.step + p.total * (p.epoch - base if p.epoch is not None else 0), **row}
        for p, row, _ in best
    ]
    first, _, begin = best[0]
    return rows, begin, first.total * first.epochs, most.every


class _Entries:
    """Lines of one kind with their places; every n-th where there are too many."""

    def __init__(self) -> None:
        self.kept: list[tuple[_Place, Row, int]] = []
        self.count = 0
        self.every = 1

    def add(self, entry: tuple[_Place, Row, int]) -> None:
        if self.count % self.every == 0:
            self.kept.append(entry)
        self.count += 1
        if len(self.kept) > _MOST_ENTRIES:
            del self.kept[1::2]
            self.every *= 2


def _each_line(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with where each begins; a list of all takes more memory than the text."""
    begin = 0
    while begin <= len(text):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        yield begin, text[begin:end]
        begin = end + 1


def _line(line: str) -> tuple[_Place, Row] | None:
    """Read one line: its step, and at least two numbers that have a name; one where it is verl's or
    the reward.
    """
    has_step = _STEP.search(line) is not None
    if not has_step and not _COUNT.search(line):
        return None
    stamped = _STAMP.sub(_blank, line)
    # `name: number` and `name=number` with where they begin; counters and files' lines are none.
    signed = [] if "{" in line else _SIGNED.finditer(stamped)
    pairs = [
        (found.start(), found[1], parse_number(found[2] + (found[3] or "")))
        for found in signed
        if not is_bookkeeping(found[1]) and not found[1].endswith(".py")
    ]
    first = next((start for start, name, _ in pairs if _is_metric(name)), len(line))
    place = _place(line if has_step else _STAMP.sub(_blank, line[:first]))
    if place is None:
        return None
    rest = line[place.end :]
    named = [(name, value) for _, name, value in pairs]
    is_verl = has_step and rest.startswith(" - ")
    if is_verl:
        named = list(_dashed(rest))
    elif has_step:
        # Labels and numbers, with or without a sign: `| Reward: 0.5 | Grad. Norm 0.1`, `,
        # reward=0.5, loss=0.1`.
        pieces = re.split(r"[|,;]|\s(?=[A-Za-z_/]+=)", rest)
        found = (entry for piece in pieces for entry in _LABELED.findall(piece))
        named = [
            *(
                (label.strip(), parse_number(numeral + percent))
                for label, numeral, percent in found
            ),
            *named,
        ]
    firsts: dict[str, tuple[str, float | None]] = {}
    # The first of a name counts: another process may have written into the line's end.
    for name, value in named:
        firsts.setdefault(re.sub(r"[\s_]+", "_", name.strip()).lower(), (name, value))
    firsts.pop("step", None)
    row: Row = dict(firsts.values())
    # One number beside a step is often a count; verl's lines and rewards are sure.
    is_enough = (
        len(row) >= 2
        or is_verl
        or any(translate(name, "prime-rl") == "reward/mean" for name in row)
    )
    return (place, row) if is_enough and any(map(_is_metric, row)) else None


def _is_metric(name: str) -> bool:
    return translate(name, "prime-rl") is not None or is_evaluation(name)


def _blank(match: re.Match[str]) -> str:
    return "|" * len(match[0])


def _dashed(text: str) -> Iterator[tuple[str, float | None]]:
    """Yield the pairs of `critic/score/mean:0.5 - actor/lr:np.float64(1e-06)`, as verl prints."""
    for piece in text.replace("np.float64(", "").replace("np.float32(", "").split(" - "):
        key, _, value = piece.rstrip(") ").rpartition(":")
        # Older versions print `actor/lr(1e-4):0.010`, in the unit in brackets.
        name, _, unit = (
            key.removesuffix(")").rpartition("(") if key.endswith(")") else (key, "", "1")
        )
        try:
            yield name, float(value) * float(unit)
        except ValueError:
            continue


def _progress(text: str, rows: int, planned: int | None) -> tuple[int, int]:
    """Return how far the training's progress bar came, and its end: of those long enough, the one
    that moved most.
    """
    is_bar = "it/s" in text or "s/it" in text
    seen: Counter[int] = Counter()
    furthest: dict[int, int] = {}
    for move in _BAR.finditer(text) if is_bar else ():
        at = int(move[1])
        end = int(move[2])
        seen[end] += 1
        furthest[end] = max(at, furthest.get(end, 0))
    # A bar that is shorter than the rows counts something else, such as batches of an epoch.
    long_enough = [end for end in seen if furthest[end] >= rows - 1]
    if not long_enough:
        return 0, 0
    end = planned if planned in long_enough else max(long_enough, key=lambda total: seen[total])
    return furthest[end], end
