"""One run as a single file: the pages with the answers of the API inside, which opens without a server."""

import base64
import gzip
import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from uptrend.dashboard import api, rollouts
from uptrend.dashboard.library import Library
from uptrend.dashboard.rollouts import RolloutPlace
from uptrend.dashboard.server import EMPTY_STYLE, PAGE, SCRIPTS, STATIC, plotly_script, plotly_styles
from uptrend.doctor.report import plain
from uptrend.records import RecordError
from uptrend.records.directory import write_whole
from uptrend.stats.formatting import visible
from uptrend.stats.pages import render

POINTS = 2000
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {style} {empty}; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)


def export_run(path: Path, target: Path, most: int) -> int:
    """Write a run's pages to a file, with at most so many rollouts; return how many were taken along."""
    with tempfile.TemporaryDirectory(prefix="uptrend-") as home:
        library = Library([path], Path(home))
        try:
            library.refresh()
            (entry,) = library.entries("run")
            id = entry.row["id"]
            answers = _answers(library, id)
            kept = _chosen(RolloutPlace(entry, library), answers, most)
            for row in kept:
                place, name = RolloutPlace(entry, library, bool(row["held"])), (row["grp"], row["idx"], row["nth"])
                asked = {"run": id, "held": "true"} if place.held else {"run": id}
                asked |= {"step": row["step"], "group": name[0], "index": name[1], "nth": name[2]}
                told = {"row": {**entry.row, "config": {}}, "rollout": rollouts.show(place, row["step"], *name)}
                answers[f"rollout?{urlencode(asked)}"] = plain(told)
            steps = {held: sorted({row["step"] for row in kept if bool(row["held"]) == held}) for held in (False, True)}
            answers |= {"run": id, "rollouts": plain(kept)}
            answers[f"steps?{urlencode({'run': id})}"] = {"steps": steps[False], "evals": steps[True], "sets": []}
        finally:
            library.close()
    write_whole(target, _page(answers, entry.row["name"]).encode())
    return len(kept)


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
    """Return lines of rollouts to take along: those that findings name, then groups of steps spread over the run."""
    (run,) = (answer for key, answer in answers.items() if key.startswith("run?"))
    taken = dict[tuple[Any, ...], dict[str, Any]]()

    def take(row: dict[str, Any]) -> None:
        taken[row["held"], row["step"], row["grp"], row["idx"], row["nth"]] = row

    named = [
        one["rollout"] for f in (run["report"] or {}).get("findings", ()) for one in f["evidence"] if one["rollout"]
    ]
    for name in dict.fromkeys(named[: most // 4]):
        step_name, _, rest = str(name).partition("/")
        group, _, index = rest.rpartition("/")
        if step_name.isdecimal() and index.isdecimal() and int(step_name) in place.steps():
            for row in rollouts.find(place, int(step_name), group, limit=most - len(taken))["rollouts"]:
                take(row)  # with its group
    steps, held = list(place.steps()), RolloutPlace(place.entry, place.library, held=True)
    evals, count = list(held.steps()), min(len(steps), 9)
    spread = [(place, steps[(len(steps) - 1) * i // max(1, count - 1)]) for i in range(count)]
    spread += [(held, step) for step in dict.fromkeys(evals[:1] + evals[-1:])]
    for at, (where, step) in enumerate(spread):
        left = (most - len(taken)) // (len(spread) - at)
        for row in rollouts.find(where, step, limit=1000)["rollouts"]:
            is_first = where.held or row["idx"] == 0
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
    scripts = [file.read_text("utf-8").replace("</script", "<\\/script").replace("<!--", "<\\!--") for file in files]
    policy = POLICY.format(scripts=" ".join(map(_hash, scripts)), style=_hash(style), empty=EMPTY_STYLE)
    title = f"{visible(name)} · Uptrend"
    values = {"scripts": scripts, "plotly": "", "plotly_styles": plotly_styles()}
    return render(PAGE, title=title, style=style, policy=policy, data=data, **values)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
