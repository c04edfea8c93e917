"""Export of a run as a single file: the pages with the API's answers inside, which open without a
server.
"""

import base64
import gzip
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from uptrend.dashboard import api, rollouts
from uptrend.dashboard.library import Library, LibraryEntry
from uptrend.dashboard.rollouts import RolloutSet
from uptrend.dashboard.server import (
    EMPTY_STYLE_HASH,
    PAGE_TEMPLATE,
    SCRIPT_NAMES,
    STATIC_FOLDER,
    plotly_script,
    plotly_styles,
)
from uptrend.present.formatting import render, visible
from uptrend.records import RecordError
from uptrend.records.files import write_atomically
from uptrend.records.lines import plain

MAX_CURVE_POINTS = 2000
# Steps, spread over the run, whose rollouts are exported, and the rollouts read of each.
MAX_SPREAD_STEPS = 9
MAX_ROLLOUTS_READ = 1000
# Share of the exported rollouts that findings may name; the others are spread over the run.
NAMED_SHARE = 1 / 4
# An absolute path within a text: of two names at least, and no part of a relative path, an address
# or a fraction.
ABSOLUTE_PATH = re.compile(
    r"(?:file://|(?<![\w.~:/…-]))(?:/[\w.@+~%-]+){2,}/?|(?<!\w)[A-Za-z]:\\(?:[^\\\s\"':]+\\)*[^\\\s\"':]*"
)
# Fields of rollouts that quote the model, a task or a program. Only folders of this machine are
# hidden in them; everything else is kept to the letter.
QUOTED_FIELDS = {"content", "calls", "question", "text", "texts", "command", "said", "answer"}
CONTENT_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {style} {empty}; img-src data: blob:;"
    " base-uri 'none'; form-action 'none'"
)
Json = dict[str, Any]


def export_run(path: Path, target: Path, max_rollouts: int) -> int:
    """Write a run's pages to a file; return the number of rollouts in it."""
    with tempfile.TemporaryDirectory(prefix="uptrend-") as home:
        library = Library([path], Path(home))
        try:
            library.refresh()
            (entry,) = library.entries("run")
            answers, lines = _answers(library, entry, max_rollouts)
        finally:
            library.close()
    page = _page(_without_paths(answers, entry.row), entry.row["name"])
    write_atomically(target, page.encode())
    return len(lines)


def _answers(
    library: Library, entry: LibraryEntry, max_rollouts: int
) -> tuple[dict[str, Any], list[Json]]:
    """Return answers of the API by the request that asks for them, and the lines of the rollouts
    among them.
    """
    if not entry.is_readable:
        raise RecordError(str(entry.row["error"]))
    if library.known_report(entry) is None:
        library.diagnose(entry.source)
    id = entry.row["id"]
    run = api.show_run(library, id)
    metrics: list[str] = []
    for section in run["metrics"]:
        metrics += [metric["key"] for metric in section["metrics"]]
    curves = api.get_curves(library, id, ",".join(metrics), MAX_CURVE_POINTS, None, None)
    answers: dict[str, Any] = {}
    answers[_request("run", run=id)] = run
    answers[_request("curves", run=id)] = curves

    lines = _chosen_lines(RolloutSet(entry, library), run["report"], max_rollouts)
    steps: set[int] = set()
    evaluated_steps: set[int] = set()
    for line in lines:
        name = {key: line[key] for key in ("step", "group", "index", "nth")}
        rollout_set = RolloutSet(entry, library, heldout=bool(line["heldout"]))
        if rollout_set.heldout:
            evaluated_steps.add(line["step"])
            request = _request("rollout", run=id, heldout="true", **name)
        else:
            steps.add(line["step"])
            request = _request("rollout", run=id, **name)
        rollout = rollouts.show_rollout(rollout_set, **name)
        answers[request] = plain({"row": entry.row_without_config, "rollout": rollout})
    answers["run"] = id
    answers["rollouts"] = plain(lines)
    answers[_request("steps", run=id)] = {
        "steps": sorted(steps),
        "evals": sorted(evaluated_steps),
        "sets": [],
    }
    return answers, lines


def _request(path: str, **query: Any) -> str:
    """Return a request as the pages write it; the order of its parameters counts."""
    return f"{path}?{urlencode(query)}"


def _without_paths(answers: Mapping[str, Any], row: Json) -> dict[str, Any]:
    """Return the answers with only the end of each absolute path: other people have other
    folders.
    """
    own_folders = _own_folders_pattern(row)

    def hide_paths(text: str, is_quoted: bool) -> str:
        text = own_folders.sub("…", text)
        return text if is_quoted else ABSOLUTE_PATH.sub(_last_name, text)

    def clean(value: Any, quoted_fields: Collection[str], is_quoted: bool = False) -> Any:
        if isinstance(value, str):
            return hide_paths(value, is_quoted)
        if isinstance(value, Mapping):
            cleaned = {}
            for key, item in value.items():
                cleaned_key = hide_paths(str(key), is_quoted)
                is_item_quoted = is_quoted or key in quoted_fields
                cleaned[cleaned_key] = clean(item, quoted_fields, is_item_quoted)
            return cleaned
        if isinstance(value, list | tuple):
            return [clean(item, quoted_fields, is_quoted) for item in value]
        return value

    cleaned_answers = {}
    for request, answer in answers.items():
        quoted_fields = QUOTED_FIELDS if request.startswith("rollout") else ()
        cleaned_answers[request] = clean(answer, quoted_fields)
    return cleaned_answers


def _own_folders_pattern(row: Json) -> re.Pattern[str]:
    """Return a pattern of the folders of this machine that a run's answers may name."""
    run = Path(row["path"])
    folders = [
        Path.home(),
        Path.cwd(),
        Path(sys.prefix),
        Path(tempfile.gettempdir()),
        *run.parents,
        *run.absolute().parents,
    ]
    for value in row["config"].values():
        if isinstance(value, str) and Path(value).is_absolute():
            folders += Path(value).parents
    # A folder right below the root is no secret, and a common word of texts.
    names = {str(folder) for folder in folders if len(folder.parts) > 2}
    # The longest first: of two alternatives that match, a pattern takes the first.
    patterns: list[str] = []
    for name in sorted(names, key=len, reverse=True):
        patterns.append(rf"(?:file://)?{re.escape(name)}(?![\w.-])")
    matches_nothing = "(?!)"
    return re.compile("|".join(patterns) or matches_nothing)


def _last_name(path: re.Match[str]) -> str:
    names = re.split(r"[/\\]", path[0].rstrip("/\\"))
    return f"…/{names[-1]}"


def _chosen_lines(trained: RolloutSet, report: Json | None, max_rollouts: int) -> list[Json]:
    """Return lines of the rollouts to export: those that findings name, with their groups, then
    groups of steps spread over the run.
    """
    chosen: dict[tuple[Any, ...], Json] = {}

    def choose(line: Json) -> None:
        name = (line["heldout"], line["step"], line["group"], line["index"], line["nth"])
        chosen[name] = line

    steps = list(trained.steps())
    names: list[str] = []
    for finding in (report or {}).get("findings", ()):
        for evidence in finding["evidence"]:
            if evidence["rollout"]:
                names.append(str(evidence["rollout"]))
    for name in dict.fromkeys(names[: int(max_rollouts * NAMED_SHARE)]):
        step_name, _, group_and_index = name.partition("/")
        group, _, index = group_and_index.rpartition("/")
        is_name = step_name.isdecimal() and index.isdecimal()
        if is_name and int(step_name) in steps:
            n_left = max_rollouts - len(chosen)
            of_group = rollouts.find_rollouts(trained, int(step_name), group, limit=n_left)
            for line in of_group["rollouts"]:
                choose(line)

    evaluated = replace(trained, heldout=True)
    evaluated_steps = list(evaluated.steps())
    sources = [(trained, step) for step in _spread(steps, MAX_SPREAD_STEPS)]
    for step in dict.fromkeys(evaluated_steps[:1] + evaluated_steps[-1:]):
        sources.append((evaluated, step))
    for position, (rollout_set, step) in enumerate(sources):
        # What one step leaves over is shared by those after it.
        n_left = (max_rollouts - len(chosen)) // (len(sources) - position)
        of_step = rollouts.find_rollouts(rollout_set, step, limit=MAX_ROLLOUTS_READ)
        for line in of_step["rollouts"]:
            # A group of training is exported whole.
            begins_group = rollout_set.heldout or line["index"] == 0
            if (n_left <= 0 and begins_group) or len(chosen) >= max_rollouts:
                break
            choose(line)
            n_left -= 1
    return [chosen[name] for name in sorted(chosen)]


def _spread(steps: Sequence[int], most: int) -> list[int]:
    """Return `most` of the steps at equal distances, the first and the last included."""
    count = min(len(steps), most)
    last = len(steps) - 1
    return [steps[last * i // max(1, count - 1)] for i in range(count)]


def _page(answers: Mapping[str, Any], name: str) -> str:
    text = json.dumps(answers, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Without a time, the same run gives the same file.
    compressed = gzip.compress(text.encode("utf-8", "replace"), compresslevel=6, mtime=0)
    style = (STATIC_FOLDER / "style.css").read_text("utf-8")
    scripts: list[str] = []
    for file in (plotly_script(), *(STATIC_FOLDER / script for script in SCRIPT_NAMES)):
        # An inline script ends at the first closing tag, even in a string.
        script = file.read_text("utf-8").replace("</script", "<\\/script")
        scripts.append(script.replace("<!--", "<\\!--"))
    policy = CONTENT_POLICY.format(
        scripts=" ".join(map(_policy_hash, scripts)),
        style=_policy_hash(style),
        empty=EMPTY_STYLE_HASH,
    )
    return render(
        PAGE_TEMPLATE,
        title=f"{visible(name)} · Uptrend",
        style=style,
        policy=policy,
        data=base64.b64encode(compressed).decode(),
        scripts=scripts,
        plotly="",
        plotly_styles=plotly_styles(),
    )


def _policy_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline script or style."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
