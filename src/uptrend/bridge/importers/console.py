"""Metrics among what a trainer printed: dictionaries, verl's `step:1 - key:value`, and lines of
`name: number` pairs.

A terminal may have colored the lines, wrapped them anywhere, and written bars over them; Ray and
launchers put a prefix before each. Lines without a step and numbers in prose are left out on
purpose: a number is a metric only where a name and a sign stand before it and it ends where it
seems to. Times, sizes, versions, dates and fractions are none. A text that holds nothing else is
read by `pasted`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from uptrend.bridge.importers.readers import Log, LogFile, Row, parse_number, stride_for
from uptrend.bridge.importers.runs import is_evaluation
from uptrend.bridge.importers.settings import printed_settings
from uptrend.present.formatting import plural
from uptrend.records.dialects import is_bookkeeping, matches, names_for, translate

# Characters of a text in which looking for dictionaries and for lines takes minutes, and number of
# dictionaries beyond which lines are not looked for in it.
LARGE_TEXT_CHARACTERS = 2_000_000
MAX_UNSURE_DICTIONARIES = 10
# Lines of metrics that are in memory at a time, about 1 kB each.
MAX_LINES_IN_MEMORY = 200_000
# Characters before a dictionary that are searched for its line's beginning: a search for \r through
# all of a large file takes minutes.
MAX_LINE_HEAD_CHARACTERS = 1000
_COLOR_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RAY_PREFIX = re.compile(r"^\([A-Za-z_.:]+ (?:pid|ip)=[^)]*\)\s?", re.MULTILINE)
_NUMERAL_PATTERN = (
    r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|NaN|Infinity)"
)

# Dictionaries: `{'loss': 0.5, 'reward': np.float64(0.25)}`. The last of a text may be torn.
_FLAT_DICTIONARY = re.compile(r"\{\s*['\"][^{}]*(?:\}|\Z)")
_KEY_AND_VALUE = re.compile(
    rf"""
    ['"] ([^'"{{}}]+) ['"] \s*:\s*                  # 'key':
    (?:[\w.]+\()? ['"]?                             # np.float64( or a quote
    (\d+/\d+ | {_NUMERAL_PATTERN} | None | null)    # 7/9751 or 0.5 or None
    ['"]?
    (?: (?:,[^(){{}}]*)? \) )?                      # , dtype=float32) or , device='cuda:0')
    \s* (?= [,}}] | \Z )
    """,
    re.VERBOSE,
)

# Steps: ` 12%|███   | 7/9751 [00:12`. A bar without a description is the training's own; others say
# what they load.
_PROGRESS_BAR = re.compile(
    r"""
    (?: ^ | [\r\n\]] ) [ \t]*                       # a line's beginning, or the bar before
    \d+% (?: \|[^|\r\n]*\| )?                       # 12%|███   |
    \s+ (\d+)/(\d+)\ \[\d+:\d\d                     # 7/9751 [00:12
    """,
    re.VERBOSE,
)
# `step 7`, `Training step: 7`, `global_step=7`, `iter [7`.
_STEP_NUMBER = re.compile(
    r"""
    \b (?: (?:global|train|training) [ _] )?
    (?:step|iteration|iter|update)
    \s* [:=#]? \s* \[? (\d+) \b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# `7/9751`, but no part of a path, a time, a date, a percentage or a fraction.
_STEP_OF_TOTAL = re.compile(
    r"""
    (?<! [\w./-] ) (?<! \d: )
    (\d+) \s*/\s* (\d+)
    (?! [\w/%-] | [.:]\d )
    """,
    re.VERBOSE,
)
# `epoch 2`, `Epoch: [2/3`.
_EPOCH_NUMBER = re.compile(
    r"\b epoch \s* [:=#]? \s* [\[(]? \s* (\d+) (?: \s*/\s* (\d+) )?", re.IGNORECASE | re.VERBOSE
)
# Stands for each character of a time or level that is blanked out. A count may follow it.
_BLANK = "|"
# Text right before a count of steps, and words by which something else is counted.
_BEFORE_COUNT = re.compile(
    rf"""
    (?: ^
    |   [(\[{_BLANK}\])>]                           # behind a bracket, a bar or a blank
    |   \s-                                         # behind a dash
    |   \b (?:batch|it|episode|rollout|prompt|sample)s? \s* [:=#]?
    ) \s* $
    """,
    re.IGNORECASE | re.VERBOSE,
)
_OTHER_ACTIVITY = re.compile(
    r"\b(?:eval|val|valid|test|load|map|download|tokeniz|filter|generat|warm|micro)", re.IGNORECASE
)

# What stands before a line: `[2024-05-06 07:08:09,123]`, `INFO:`, `[rank 0]:`, `0: `.
_TIME_OR_LEVEL = re.compile(
    r"""
    [\[(]? (?: \b \d{4}[-/]\d\d[-/]\d\d [T ]? )?    # a date before a time
    \b \d{1,2}:\d\d (?: :\d\d (?:[.,]\d+)? )? Z? \b [\])]?
    | \b \d{4}[-/]\d\d[-/]\d\d \b                   # a date alone
    | \b (?:DEBUG|INFO|SUCCESS|WARN(?:ING)?|ERROR|CRITICAL) \b :?
    """,
    re.VERBOSE,
)
_PROCESS_PREFIX = re.compile(
    r"""
    ^\s*
    (?: \[? (?: local[_ ]? )? (?:rank|default|gpu|process|proc|worker)
        [ _:=#-]* (\d+) \b \]? [:|,]?
    |   (\d{1,4}): (?=\s)
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)

# Metrics: `name: number` and `name=number`.
_NAMED_NUMBER = re.compile(
    rf"""
    (?<! [\w./@-] ) ['"]?
    ( [A-Za-z][\w./@-]*                             # name,
      (?: \ [A-Za-z(][\w./@()-]* ){{0,4}} )         # of up to five words
    ['"]? \s* [:=] \s*
    (?:[\w.]+\()? ['"]?                             # np.float64( or a quote
    ({_NUMERAL_PATTERN})
    (?: (%)(?!\|) | (?!%) )                         # 12% is a number, 12%| a bar
    (?! \.?\w                                       # a version, or a unit such as in 5ms
    |   [:/-]\d                                     # a time, a fraction or a date
    |   ,\d{{3}}(?!\d)                              # 1,000
    |   \s* (?:[KMGT]i?B|bytes) \b                  # a size
    )
    """,
    re.VERBOSE,
)
# Labels and numbers, with or without a sign: `| Reward: 0.5 | Grad. Norm 0.1`, `, reward=0.5,
# loss=0.1`.
_LABEL_AND_NUMBER = re.compile(
    rf"([A-Za-z][\w./@ -]*?) \s* [:=\s] \s* ({_NUMERAL_PATTERN}) \s* (%?)", re.VERBOSE
)
_BETWEEN_LABELS = re.compile(r"[|,;]|\s(?=[A-Za-z_/]+=)")
# verl's line `step:12 - actor/loss:0.01 - `, and a line that goes on with such pairs.
_DASHED_LINE = re.compile(r"\bstep:\d+ - ")
_DASHED_PAIR = re.compile(r"(?:^| - )\S*:[-\w.()+]+ - ")

# Dialects whose names are looked up first: TRL prints dictionaries, prime-rl prints lines. Names of
# all other trainers are known too.
DICTIONARY_DIALECT = "trl"
LINE_DIALECT = "prime-rl"


@dataclass(frozen=True)
class _PrintedRows:
    """Rows of metrics among what was printed, of dictionaries or of lines."""

    rows: list[Row]
    start: int = 0  # characters of the text before the first
    stride: int = 1  # n if every n-th was read
    total_steps: int = 0  # steps that the run is to have; 0 if unknown
    is_torn: bool = False  # true if the last one is cut off


def without_decoration(text: str) -> str:
    """Return what was printed, without colors and without the prefixes that Ray puts before
    lines.
    """
    text = text.replace("\r\n", "\n")
    if "\x1b" in text:
        text = _COLOR_CODE.sub("", text)
    if "pid=" in text or "ip=" in text:
        text = _RAY_PREFIX.sub("", text)
    return text


def read_console(file: LogFile) -> list[Log] | None:
    """Return the metrics among everything that was printed; None if there are none."""
    text = without_decoration(file.console())
    dictionaries = _read_dictionaries(text)
    n_dictionaries = len(dictionaries.rows)
    lines = _PrintedRows([])
    # Dictionaries are surer than lines, which a large text with enough of them is not searched for.
    is_large = len(text) > LARGE_TEXT_CHARACTERS
    if not is_large or n_dictionaries <= MAX_UNSURE_DICTIONARIES:
        # verl's lines may be wrapped at their dashes, and in a terminal anywhere.
        unwrapped = text.replace("\n - ", " - ")
        if not is_large and _DASHED_LINE.search(unwrapped):
            unwrapped = _join_dashed_lines(unwrapped)
        lines = _read_lines(unwrapped, with_bars=not n_dictionaries)
    # A script may print both; the more frequent are the training's.
    is_lines = len(lines.rows) > n_dictionaries
    printed = lines if is_lines else dictionaries
    n_rows = len(printed.rows)
    if not n_rows:
        return None

    facts = printed_settings(text, printed.start)
    last_step, planned_steps = _read_progress(text, n_rows, facts.get("max_steps"))
    planned_steps = planned_steps or printed.total_steps
    if planned_steps:
        facts["max_steps"] = planned_steps
    notes = [f"{plural(n_rows, 'row')} of metrics found among what was printed."]
    # Lines have steps of their own, so that `every` suffices. Dictionaries may have none: how many
    # there were is counted in the last step, over which they are spread.
    every = 1
    if is_lines:
        every = printed.stride
    elif printed.stride > 1:
        last_step = last_step or printed.stride * n_rows
        notes.append(f"Every {printed.stride}th dictionary was read.")
    if printed.is_torn:
        notes.append("The last dictionary is cut off and was left out.")
    log = Log(printed.rows, facts=facts, last_step=last_step, notes=tuple(notes), every=every)
    return [log]


def _join_dashed_lines(text: str) -> str:
    """Join the lines into which a terminal has broken those of verl, also within a name."""
    joined: list[str] = []
    for line in text.split("\n"):
        goes_on = bool(joined) and _DASHED_LINE.search(joined[-1]) is not None
        if goes_on and not _DASHED_LINE.search(line) and _DASHED_PAIR.search(f"{line} - "):
            joined[-1] += line
        else:
            joined.append(line)
    return "\n".join(joined)


def _read_dictionaries(text: str) -> _PrintedRows:
    """Return the dictionaries that hold metrics, with the step that is printed before each."""
    rows: list[Row] = []
    is_torn = False
    start = 0
    # Counted before they are read, since a list of them takes more memory than the text.
    stride = stride_for(sum(1 for _ in _FLAT_DICTIONARY.finditer(text)))
    for match in islice(_FLAT_DICTIONARY.finditer(text), 0, None, stride):
        row = _parse_dictionary(match[0])
        if not are_metrics(tuple(row)):
            continue
        if not rows:
            start = match.start()
        is_torn = not match[0].endswith("}")
        if is_torn:
            continue

        # The step may stand on the line before the dictionary; a bar may lag behind.
        step = _find_step(_line_before(text, match.start()))
        if step is not None and not step.is_bar and not any(map(_counts_steps, row)):
            row = {"step": step.step, **row}
        rows.append(row)
    return _PrintedRows(rows, start, stride, is_torn=is_torn)


def _parse_dictionary(printed: str) -> Row:
    # A terminal wraps in the middle of a word, so the pieces are joined as they are.
    joined = printed.replace("\r", "").replace("\n", "")
    try:
        parsed: Row = json.loads(joined.replace("'", '"'))
    except (ValueError, RecursionError):  # nan, None, np.float64(…), an apostrophe, or torn
        row: Row = {}
        for key, value in _KEY_AND_VALUE.findall(joined):
            row[key.strip()] = value if "/" in value else parse_number(value)
        return row
    return parsed


def _line_before(text: str, position: int) -> str:
    """Return the part of a line before a position."""
    earliest = max(0, position - MAX_LINE_HEAD_CHARACTERS)
    line_breaks = [text.rfind(end, earliest, position) for end in "\n\r"]
    return text[max(earliest, *(index + 1 for index in line_breaks)) : position]


def _counts_steps(column: str) -> bool:
    if column == "global_step/max_steps":
        return True
    return is_bookkeeping(column) and "step" in column


@lru_cache(maxsize=1024)
def are_metrics(names: tuple[str, ...]) -> bool:
    """Return True if at least two names are metrics; a printed config or an answer of the model has
    none.
    """
    ours = [translate(name, DICTIONARY_DIALECT) for name in names]
    has_result = "reward/mean" in ours or "loss/total" in ours
    if not has_result and not set(names).isdisjoint(names_for("printed_settings")):
        return False
    n_known = sum(name is not None for name in ours)
    n_others = sum(is_evaluation(name) or matches(name, "summary") for name in names)
    return n_known + n_others >= 2


@dataclass(frozen=True)
class _PrintedStep:
    """Step of a line, as printed."""

    step: int  # step; within the epoch if there is one
    total: int = 0  # number of steps, likewise; 0 if it is not printed
    epoch: int | None = None  # epoch, counted from 0 or 1
    n_epochs: int = 1
    is_bar: bool = False  # true if a progress bar shows it
    end: int = 0  # end of its characters in the line


def _find_step(head: str) -> _PrintedStep | None:
    """Find the step in the part of a line before its metrics: `step 7`, else `(7/9751)`, `[7/9751]`
    or `7/9751`.
    """
    step = _STEP_NUMBER.search(head)
    if step is not None:
        # `micro step 7` counts parts of a step.
        word_before = head[max(0, step.start() - len("micro ")) : step.start()]
        if word_before.strip().lower() == "micro":
            return None
        return _PrintedStep(int(step[1]), end=step.end())

    epoch = _EPOCH_NUMBER.search(head)
    for count in _STEP_OF_TOTAL.finditer(head):
        before = head[: count.start()]
        step_number = int(count[1])
        total = int(count[2])
        is_of_epoch = epoch is not None and epoch.start() < count.start() < epoch.end()
        if is_of_epoch or step_number > total:
            continue
        if _OTHER_ACTIVITY.search(before) or not _BEFORE_COUNT.search(before):
            continue
        epoch_number = None
        n_epochs = 1
        if epoch is not None:
            epoch_number = int(epoch[1])
            n_epochs = int(epoch[2] or 1)
        is_bar = "%|" in before
        return _PrintedStep(step_number, total, epoch_number, n_epochs, is_bar, count.end())
    if epoch is not None and epoch[2]:
        return _PrintedStep(int(epoch[1]), int(epoch[2]), end=epoch.end())
    return None


class _MetricsLine(NamedTuple):
    """Line with a step and metrics."""

    step: _PrintedStep
    row: Row
    start: int  # characters of the text before it


class _LineBuffer:
    """Lines of one kind; every n-th if there are too many."""

    def __init__(self) -> None:
        self.lines: list[_MetricsLine] = []
        self.count = 0
        self.stride = 1

    def add(self, line: _MetricsLine) -> None:
        if self.count % self.stride == 0:
            self.lines.append(line)
        self.count += 1
        if len(self.lines) > MAX_LINES_IN_MEMORY:
            del self.lines[1::2]
            self.stride *= 2


def _read_lines(text: str, with_bars: bool) -> _PrintedRows:
    """Return rows of lines with a step; progress bars count only if nothing else does."""
    by_step = _LineBuffer()
    by_count = _LineBuffer()
    by_bar = _LineBuffer()
    process_by_step: dict[int, str] = {}
    for start, printed in _each_line(text.replace("\r", "\n")):
        process = _PROCESS_PREFIX.match(printed)
        if process:
            printed = printed[process.end() :]
        parsed = None if printed.lstrip()[:1] in ("{", "'") else _parse_line(printed)
        if parsed is None:
            continue
        step, row = parsed
        if process:
            # Several processes print the same step, and not in order: the first to print it counts.
            # Once they are too many to hold in memory, one process counts for all further lines.
            is_full = len(process_by_step) >= MAX_LINES_IN_MEMORY
            key = -1 if is_full else step.step
            first_process = process_by_step.setdefault(key, process[0])
            if process[0] != first_process:
                continue
        buffer = by_count if step.total else by_step
        if step.is_bar:
            buffer = by_bar
        buffer.add(_MetricsLine(step, row, start))

    # Lines with `step 7` and those with `7/9751` are not mixed: whichever are more count. Bars show
    # numbers that may lag behind.
    chosen = max(by_step, by_count, key=lambda buffer: buffer.count)
    if with_bars and not chosen.lines:
        chosen = by_bar
    if not chosen.lines:
        return _PrintedRows([])
    totals = Counter(line.step.total for line in chosen.lines)
    usual_total = totals.most_common(1)[0][0]
    lines = [line for line in chosen.lines if line.step.total == usual_total]
    # Epochs are counted from 0 or from 1.
    epochs = [line.step.epoch for line in lines if line.step.epoch is not None]
    first_epoch = min(epochs, default=0)
    rows: list[Row] = []
    for line in lines:
        epoch = first_epoch if line.step.epoch is None else line.step.epoch
        step_of_run = line.step.step + line.step.total * (epoch - first_epoch)
        rows.append({"step": step_of_run, **line.row})
    first = lines[0]
    total_steps = first.step.total * first.step.n_epochs
    return _PrintedRows(rows, first.start, chosen.stride, total_steps)


def _each_line(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with where each begins; a list of all takes more memory than the text."""
    begin = 0
    while begin <= len(text):
        end = text.find("\n", begin)
        if end < 0:
            end = len(text)
        yield begin, text[begin:end]
        begin = end + 1


def _parse_line(line: str) -> tuple[_PrintedStep, Row] | None:
    """Return a line's step and named numbers; None with fewer than two of them, unless verl or the
    reward makes one sure.
    """
    # A line without a step is no line of metrics.
    has_step = _STEP_NUMBER.search(line) is not None
    if not has_step and not _STEP_OF_TOTAL.search(line):
        return None

    # Numbers with a name anywhere in the line.
    pairs: list[tuple[str, float | None]] = []
    first_metric = len(line)
    if "{" not in line:
        for start, name, value in named_numbers(line):
            # Counters and files' lines are no metrics.
            if is_bookkeeping(name) or name.endswith(".py"):
                continue
            if _is_metric(name):
                first_metric = min(first_metric, start)
            pairs.append((name, value))

    # The step, which may be a count before the first metric.
    head = line if has_step else _TIME_OR_LEVEL.sub(_blank_out, line[:first_metric])
    step = _find_step(head)
    if step is None:
        return None

    # Behind a step with a word, numbers in the format of verl, or with labels.
    rest = line[step.end :]
    is_verl = has_step and rest.startswith(" - ")
    if is_verl:
        pairs = list(_dashed_pairs(rest))
    elif has_step:
        pairs = [*_labeled_pairs(rest), *pairs]

    # The first of a name counts: another process may have written into the line's end.
    first_pairs: dict[str, tuple[str, float | None]] = {}
    for name, value in pairs:
        folded = re.sub(r"[\s_]+", "_", name.strip()).lower()
        first_pairs.setdefault(folded, (name, value))
    first_pairs.pop("step", None)
    row: Row = dict(first_pairs.values())

    # Lines that are surely of metrics.
    if not any(map(_is_metric, row)):
        return None
    # One number beside a step is often a count; verl's lines and rewards are sure.
    has_reward = any(translate(name, LINE_DIALECT) == "reward/mean" for name in row)
    return (step, row) if len(row) >= 2 or is_verl or has_reward else None


def named_numbers(line: str) -> Iterator[tuple[int, str, float | None]]:
    """Yield each `name: number` and `name=number` of a line with where it begins."""
    for match in _NAMED_NUMBER.finditer(_TIME_OR_LEVEL.sub(_blank_out, line)):
        yield match.start(), match[1], parse_number(match[2] + (match[3] or ""))


def step_in_words(line: str) -> int | None:
    """Return the step that a line names by a word, such as `Step 12`; None without one."""
    step = _STEP_NUMBER.search(line)
    return int(step[1]) if step else None


def _is_metric(name: str) -> bool:
    return translate(name, LINE_DIALECT) is not None or is_evaluation(name)


def _blank_out(match: re.Match[str]) -> str:
    """Return as many blanks as the match has characters, so that positions stay."""
    return _BLANK * len(match[0])


def _labeled_pairs(text: str) -> Iterator[tuple[str, float | None]]:
    for piece in _BETWEEN_LABELS.split(text):
        for label, numeral, percent in _LABEL_AND_NUMBER.findall(piece):
            yield label.strip(), parse_number(numeral + percent)


def _dashed_pairs(text: str) -> Iterator[tuple[str, float | None]]:
    """Yield the pairs of `critic/score/mean:0.5 - actor/lr:np.float64(1e-06)`, as verl prints."""
    for piece in text.replace("np.float64(", "").replace("np.float32(", "").split(" - "):
        key, _, numeral = piece.rstrip(") ").rpartition(":")
        name = key
        unit = "1"
        # Older versions print `actor/lr(1e-4):0.010`, in the unit in brackets.
        if key.endswith(")"):
            name, _, unit = key.removesuffix(")").rpartition("(")
        try:
            yield name, float(numeral) * float(unit)
        except ValueError:
            continue


def _read_progress(text: str, n_rows: int, planned_steps: int | None) -> tuple[int, int]:
    """Return how far the training's progress bar came, and its end: of those long enough, the one
    that moved most.
    """
    if "it/s" not in text and "s/it" not in text:
        return 0, 0
    n_moves: Counter[int] = Counter()
    furthest: dict[int, int] = {}
    for bar in _PROGRESS_BAR.finditer(text):
        step = int(bar[1])
        end = int(bar[2])
        n_moves[end] += 1
        furthest[end] = max(step, furthest.get(end, 0))
    # A bar that is shorter than the rows counts something else, such as batches of an epoch.
    long_enough = [end for end in n_moves if furthest[end] >= n_rows - 1]
    if not long_enough:
        return 0, 0
    if planned_steps in long_enough:
        return furthest[planned_steps], planned_steps
    end = max(long_enough, key=lambda total: n_moves[total])
    return furthest[end], end
