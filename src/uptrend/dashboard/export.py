"""One run as a single file: the pages with the answers of the API inside, which opens without a
server.
"""

import base64
import gzip
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from uptrend.dashboard import api, rollouts
from uptrend.dashboard.library import Library
from uptrend.dashboard.rollouts import RolloutPlace
from uptrend.dashboard.server import (
    EMPTY_STYLE,
    PAGE,
    SCRIPTS,
    STATIC,
    plotly_script,
    plotly_styles,
)
from uptrend.present.formatting import render, visible
from uptrend.records import RecordError
from uptrend.records.files import write_atomically
from uptrend.records.lines import plain

POINTS = 2000
# An absolute path within a text: of two names at least, and no part of a relative path, an address
# or a fraction.
PATH = re.compile(
    r"(?:file://|(?<![\w.~:/…-]))(?:/[\w.@+~%-]+){2,}/?|(?<!\w)[A-Za-z]:\\(?:[^\\\s\"':]+\\)*[^\\\s\"':]*"
)
# Fields of rollouts with what was said, to the letter: of it only paths that are known to be this
# machine's are hidden.
SAID = {"content", "calls", "question", "text", "texts", "command", "said", "answer"}
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {style} {empty}; img-src data: blob:;"
    " base-uri 'none'; form-action 'none'"
)


def export_run(path: Path, target: Path, most: int) -> int:
    """Write a run's pages to a file, with at most so many rollouts; return how many were taken
    along.
    """
    with tempfile.TemporaryDirectory(prefix="uptrend-") as home:
        library = Library([path], Path(home))
        try:
            library.refresh()
            (entry,) = library.entries("run")
            id = entry.row["id"]
            answers = _answers(library, id)
            kept = _chosen(RolloutPlace(entry, library), answers, most)
            for row in kept:
                place = RolloutPlace(entry, library, bool(row["held"]))
                name = (row["group"], row["index"], row["nth"])
                asked = {"run": id, "held": "true"} if place.held else {"run": id}
                asked |= {"step": row["step"], "group": name[0], "index": name[1], "nth": name[2]}
                told = {
                    "row": {**entry.row, "config": {}},
                    "rollout": rollouts.show(place, row["step"], *name),
                }
                answers[f"rollout?{urlencode(asked)}"] = plain(told)
            steps = {
                held: sorted({row["step"] for row in kept if bool(row["held"]) == held})
                for held in (False, True)
            }
            answers |= {"run": id, "rollouts": plain(kept)}
            answers[f"steps?{urlencode({'run': id})}"] = {
                "steps": steps[False],
                "evals": steps[True],
                "sets": [],
            }
        finally:
            library.close()
    write_atomically(target, _page(_without_paths(answers, entry.row), entry.row["name"]).encode())
    return len(kept)


def _without_paths(answers: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers with the end alone of each absolute path: whoever gets the file has other
    folders.
    """
    run = Path(row["path"])
    folders = [
        Path.home(),
        Path.cwd(),
        Path(sys.prefix),
        Path(tempfile.gettempdir()),
        *run.parents,
        *run.absolute().parents,
    ]
    settings = [Path(value) for value in row["config"].values() if isinstance(value, str)]
    folders += [place for path in settings if path.is_absolute() for place in path.parents]
    # A folder right below the root is no secret, and a common word of texts.
    known = sorted(
        {str(folder) for folder in folders if len(folder.parts) > 2}, key=len, reverse=True
    )
    hidden = re.compile(
        "|".join(rf"(?:file://)?{re.escape(folder)}(?![\w.-])" for folder in known) or "(?!)"
    )

    def plain_text(text: str, is_said: bool) -> str:
        text = hidden.sub("…", text)
        return text if is_said else PATH.sub(_last_name, text)

    def clean(value: Any, said: Collection[str], is_said: bool = False) -> Any:
        if isinstance(value, str):
            return plain_text(value, is_said)
        if isinstance(value, Mapping):
            return {
                plain_text(str(key), is_said): clean(item, said, is_said or key in said)
                for key, item in value.items()
            }
        return (
            [clean(item, said, is_said) for item in value]
            if isinstance(value, list | tuple)
            else value
        )

    return {
        key: clean(answer, SAID if key.startswith("rollout") else ())
        for key, answer in answers.items()
    }


def _last_name(path: re.Match[str]) -> str:
    return "…/" + re.split(r"[/\\]", path[0].rstrip("/\\"))[-1]


def _answers(library: Library, id: str) -> dict[str, Any]:
    """Return the answers on the run itself, the doctor's report among them."""
    entry = library.entry(id)
    if entry.row["status"] == "unreadable":
        raise RecordError(str(entry.row["error"]))
    if library.known_report(entry) is None:
        library.diagnose(entry.source)
    run = api.show_run(library, id)
    keys = ",".join(one["key"] for section in run["metrics"] for one in section["metrics"])
    curves = api.get_curves(library, id, keys, POINTS, None, None)
    asked = urlencode({"run": id})
    return {f"run?{asked}": run, f"curves?{asked}": curves}


def _chosen(place: RolloutPlace, answers: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """Return lines of rollouts to take along: those that findings name, then groups of steps spread
    over the run.
    """
    (run,) = (answer for key, answer in answers.items() if key.startswith("run?"))
    taken = dict[tuple[Any, ...], dict[str, Any]]()

    def take(row: dict[str, Any]) -> None:
        taken[row["held"], row["step"], row["group"], row["index"], row["nth"]] = row

    named = [
        one["rollout"]
        for f in (run["report"] or {}).get("findings", ())
        for one in f["evidence"]
        if one["rollout"]
    ]
    for name in dict.fromkeys(named[: most // 4]):
        step_name, _, rest = str(name).partition("/")
        group, _, index = rest.rpartition("/")
        if step_name.isdecimal() and index.isdecimal() and int(step_name) in place.steps():
            for row in rollouts.find(place, int(step_name), group, limit=most - len(taken))[
                "rollouts"
            ]:
                take(row)  # with its group
    steps = list(place.steps())
    held = RolloutPlace(place.entry, place.library, held=True)
    evals = list(held.steps())
    count = min(len(steps), 9)
    spread = [(place, steps[(len(steps) - 1) * i // max(1, count - 1)]) for i in range(count)]
    spread += [(held, step) for step in dict.fromkeys(evals[:1] + evals[-1:])]
    for at, (where, step) in enumerate(spread):
        left = (most - len(taken)) // (len(spread) - at)
        for row in rollouts.find(where, step, limit=1000)["rollouts"]:
            is_first = where.held or row["index"] == 0
            if (left <= 0 and is_first) or len(taken) >= most:  # a group is taken whole
                break
            take(row)
            left -= 1
    return [taken[key] for key in sorted(taken)]


def _page(answers: Mapping[str, Any], name: str) -> str:
    text = json.dumps(answers, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode()
    style = (STATIC / "style.css").read_text("utf-8")
    # An inline script ends at the first closing tag, wherever it stands.
    files = [plotly_script(), *(STATIC / name for name in SCRIPTS)]
    scripts = [
        file.read_text("utf-8").replace("</script", "<\\/script").replace("<!--", "<\\!--")
        for file in files
    ]
    policy = POLICY.format(
        scripts=" ".join(map(_hash, scripts)), style=_hash(style), empty=EMPTY_STYLE
    )
    title = f"{visible(name)} · Uptrend"
    values = {"scripts": scripts, "plotly": "", "plotly_styles": plotly_styles()}
    return render(PAGE, title=title, style=style, policy=policy, data=data, **values)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
