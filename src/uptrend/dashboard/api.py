"""API endpoints, one function each. api.toml describes them in OpenAPI's form."""

import fnmatch
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from uptrend.config import difference
from uptrend.dashboard import findings, journals, rollouts
from uptrend.dashboard.curves import POINTS, STEP, TIME, thin
from uptrend.dashboard.filters import COLUMNS, BadRequest, choose, known_key, value_of
from uptrend.dashboard.library import Library, LibraryEntry
from uptrend.dashboard.rollouts import RolloutPlace
from uptrend.records import RecordError
from uptrend.records.lines import plain
from uptrend.records.metrics import find_metric, label_of, panels, sections
from uptrend.records.run import step_folders

Json = dict[str, Any]
NOT_COMPARED = ("name", "seed")
# Types of parameters, by OpenAPI's names: how a value is read, and what it should be.
TYPES: dict[str, tuple[Callable[[str], Any], str]] = {
    "string": (str, "text"),
    "integer": (int, "a whole number"),
    "number": (float, "a number"),
    "boolean": ({"1": True, "true": True, "0": False, "false": False}.__getitem__, "true or false"),
}
MAX_EXACT = 2**53  # largest whole number up to which a browser knows each one


@cache
def openapi() -> Json:
    """Return the description of the API for programs: api.toml, with what all endpoints share."""
    about: Json = tomllib.loads(Path(__file__).with_name("api.toml").read_text("utf-8"))
    about["info"]["version"] = version()
    error = {"$ref": "#/components/responses/error"}
    shared = {"200": {"$ref": "#/components/responses/answer"}, "400": error, "404": error}
    for methods in about["paths"].values():
        for operation in methods.values():
            operation["responses"] = shared | operation.get("responses", {})
            for parameter in operation.setdefault("parameters", []):
                parameter["in"] = "query"
    return about


def call(library: Library, path: str, query: Mapping[str, str]) -> Json:
    """Return an endpoint's answer; BadRequest where a parameter is wrong."""
    parameters = openapi()["paths"][f"/api/{path}"]["get"]["parameters"]
    known = [parameter["name"] for parameter in parameters]
    if unknown := sorted(set(query) - set(known)):
        raise BadRequest(
            f"{path} has no parameter {unknown[0][:80]}; it has {', '.join(known) or 'none'}."
        )
    arguments = {}
    for parameter in parameters:
        name = parameter["name"]
        arguments[parameter.get("x-argument", name)] = _read(parameter, query.get(name))
    return ENDPOINTS[path](library, **arguments)


def _read(parameter: Json, text: str | None) -> Any:
    """Return the value of a parameter from the address."""
    name = parameter["name"]
    schema = parameter["schema"]
    convert, kind = TYPES[schema["type"]]
    if text is None or (text == "" and schema["type"] != "string"):
        if parameter.get("required"):
            raise BadRequest(f"The parameter {name} is missing: {parameter['description']}")
        return schema.get("default")
    try:
        value = convert(text.lower() if schema["type"] == "boolean" else text)
    except (KeyError, ValueError):
        raise BadRequest(f"{name}={text[:80]} should be {kind}.") from None
    if schema["type"] in ("integer", "number"):
        least = schema.get("minimum", -MAX_EXACT)
        most = schema.get("maximum", MAX_EXACT)
        if not least <= value <= most:  # NaN is not, either
            raise BadRequest(f"{name}={text[:80]} should be from {least:,} to {most:,}.")
    return value


def version() -> str:
    """Return Uptrend's version."""
    # an import would lead up to the packages above this one
    return str(sys.modules["uptrend"].__version__)


def get_status(library: Library) -> Json:
    progress = library.progress
    counts = {kind: len(library.entries(kind)) for kind in ("run", "log", "lab")}
    folders = [{"path": str(root), "exists": root.exists()} for root in library.roots]
    return {"uptrend": version(), **vars(progress), "counts": counts, "folders": folders}


def list_runs(
    library: Library, filter: str, sort: str, group: str, columns: str, limit: int, offset: int
) -> Json:
    rows = choose(library.rows(), filter, sort)
    known = _config_keys(library)
    for key in [key for key in (group, *columns.split(",")) if key and known]:
        known_key(key, {*COLUMNS, *known})
    if group:  # groups in the order of their first row
        firsts: dict[str, int] = {}
        for place, row in enumerate(rows):
            firsts.setdefault(str(value_of(row, group)), place)
        rows.sort(key=lambda row: firsts[str(value_of(row, group))])
    keys = [key for key in columns.split(",") if key]
    shown = []
    for row in rows[offset : offset + limit]:
        config = {key: row.get("config", {}).get(key) for key in keys}
        told = {"group": value_of(row, group)} if group else {}
        shown.append({**row, "config": config, **told})
    return {"total": len(rows), "rows": shown, "keys": known if offset == 0 else []}


def _config_keys(library: Library) -> list[str]:
    return sorted({key for row in library.rows() for key in row.get("config", ())})


def _filled(names: list[str], has_evals: bool) -> list[dict[str, Any]]:
    """Return the panels that have something to show, with the metrics of each."""
    shown = []
    for panel in panels():
        found: list[str] = []
        for keys in (panel["keys"], panel.get("instead", [])):
            wanted = [
                name
                for key in keys
                for name in names
                if fnmatch.fnmatchcase(name, key) and name != "seconds/step"
            ]
            found = found or list(dict.fromkeys(wanted))
        kind = panel.get("kind", "lines")
        if found or (kind == "held-out" and has_evals):
            metric = find_metric(found[0]) if found else find_metric("eval/accuracy")
            title = panel.get("title") or label_of(found[0])
            unit = "share" if kind == "held-out" or (metric and metric.is_share) else ""
            if panel["id"] == "reward" and len(found) == 2:  # its only part is the reward itself
                found = found[:1]
            total = panel.get("total") if panel.get("total") in names else None
            shown.append(
                {
                    "id": panel["id"],
                    "title": title,
                    "kind": kind,
                    "keys": found,
                    "unit": unit,
                    "total": total,
                }
            )
    return shown


def show_run(library: Library, run: str) -> Json:
    entry = library.fresh(run)
    if entry.row.get("status") == "unreadable":
        return {"row": entry.row, "error": entry.row["error"]}
    table = library.table(entry)
    names = [
        name
        for name in table.column_names
        if table[name].null_count < len(table) and name not in (STEP, TIME)
    ]
    trainer = str(entry.row["trainer"])
    report = library.report(entry)
    details = _details(library, entry)
    answer: Json = {
        "row": {**entry.row, "config": {}},
        "metrics": _metric_sections(names),
        "report": findings.told(report, str(entry.source.path), trainer),
        "settings": findings.settings(details["config"], trainer),
        "notes": details["notes"],
    }
    evals = details["evals"]
    if entry.source.kind == "log":
        answer |= {
            "markers": [],
            "rollouts": bool(details["rollout_steps"]),
            "info": {},
            "evals": [
                e for e in evals if isinstance(e.get("accuracy", e.get("reward")), int | float)
            ],
            "bounds": None,
        }
    else:
        answer |= {
            "markers": details["markers"],
            "evals": [e for e in evals if isinstance(e.get("accuracy"), int | float)],
            "rollouts": (entry.source.path / "rollouts").is_dir(),
            "info": details["info"],
            "bounds": _bounds(RolloutPlace(entry, library)),
            "stopped": details["stopped"],
            "checkpoints": [
                path.name for path in step_folders(entry.source.path / "checkpoints").values()
            ],
        }
    answer["panels"] = _filled(names, any(e.get("accuracy") is not None for e in answer["evals"]))
    return dict(plain(answer))


def _details(library: Library, entry: LibraryEntry) -> Json:
    """Return what is known of a run or a log besides its row and its curves."""
    return library.facts(entry) if entry.source.kind == "run" else library.log(entry)


def _bounds(place: RolloutPlace) -> list[float] | None:
    """Return the least and greatest reward that a rollout of the last step can have; None where
    nobody said.
    """
    try:
        found: list[float] | None = place.ask("reward_bounds", place.entry.row["step"])
    except RecordError:  # none were kept of it
        return None
    return found


def _metric_sections(names: list[str]) -> list[Json]:
    """Return the metrics that a run has, by section of the table of metrics; those that it does not
    know come last.
    """
    homes = {metric.key: section.title for section in sections() for metric in section.metrics}
    found: dict[str, list[Json]] = {section.title: [] for section in sections()}
    for name in names:
        metric = find_metric(name)
        told = {
            "key": name,
            "unit": metric.unit if metric else "",
            "meaning": metric.meaning if metric else "",
        }
        told["healthy"] = metric.healthy if metric else ""
        found.setdefault(homes.get(metric.key, "Others") if metric else "Others", []).append(told)
    return [{"title": title, "metrics": metrics} for title, metrics in found.items() if metrics]


def get_curves(
    library: Library, run: str, keys: str, points: int, first: int | None, last: int | None
) -> Json:
    entry = library.entry(run, "run", "log")
    if entry.row.get("status") == "unreadable":
        raise RecordError(str(entry.row["error"]))
    table = library.table(entry)
    wanted = _split(keys, table.column_names)
    if not wanted:
        filled = _filled(table.column_names, False)
        wanted = [key for panel in filled for key in (*panel["keys"], panel["total"]) if key]
    return thin(table, dict.fromkeys(wanted), points or POINTS, first, last)


def _split(text: str, known: Collection[str]) -> list[str]:
    """Return names that are separated by commas; a known name may have commas itself, and the
    longest one counts.
    """
    found = list[str]()
    words = text.split(",")[::-1]
    most = 1 + max((name.count(",") for name in known), default=0)
    while words:
        ends = range(min(most, len(words)), 0, -1)
        names = (",".join(words[: -end - 1 : -1]) for end in ends)
        found.append(next((name for name in names if name in known), words[-1]))
        del words[-1 - found[-1].count(",") :]
    return [name for name in found if name]


def compare_runs(library: Library, runs: str) -> Json:
    ids = list(dict.fromkeys(_split(runs, {row["id"] for row in library.rows()})))
    if len(ids) > 40:
        raise BadRequest(f"{len(ids)} runs can't be told apart on one plot; choose 40 at most.")
    entries = [library.fresh(id) for id in ids]
    readable = [e for e in entries if e.row.get("status") != "unreadable"]
    flat = [e.row.get("config", {}) for e in readable]
    keys = sorted({key for config in flat for key in config})
    values = {key: [config.get(key) for config in flat] for key in keys if key not in NOT_COMPARED}
    differ = {key: told for key, told in values.items() if any(value != told[0] for value in told)}
    names = list(dict.fromkeys(name for e in readable for name in library.table(e).column_names))
    has_evals = any(e.row.get("after") or e.row.get("before") for e in readable)
    return dict(
        plain(
            {
                "rows": [{**e.row, "config": {}} for e in entries],
                "ids": [e.row["id"] for e in readable],
                "differences": differ,
                "seeds": _seeds(readable),
                "paired": _pairs(library, readable),
                "panels": _filled(names, has_evals),
                "evals": {e.row["id"]: _evals(library, e) for e in readable},
                "metrics": _metric_sections([name for name in names if name not in (STEP, TIME)]),
            }
        )
    )


def _evals(library: Library, entry: LibraryEntry) -> list[Json]:
    return [
        {k: e.get(k) for k in ("step", "accuracy", "low", "high")}
        for e in _details(library, entry)["evals"]
        if e.get("accuracy") is not None
    ]


def _seeds(entries: list[LibraryEntry]) -> list[list[str]]:
    """Return the ids of runs whose configs differ in seed and name alone, by config."""
    groups: list[tuple[Mapping[str, Any], list[str]]] = []
    for entry in entries:
        config = {
            key: value
            for key, value in entry.row.get("config", {}).items()
            if key not in NOT_COMPARED
        }
        same = next((ids for known, ids in groups if known and not difference(known, config)), None)
        if same is not None:
            same.append(entry.row["id"])
        else:
            groups.append((config, [entry.row["id"]]))
    return [ids for _, ids in groups]


def _pairs(library: Library, entries: list[LibraryEntry]) -> list[Json]:
    """Return each run against the first, on the held-out tasks that both were asked."""
    own = [e for e in entries if e.source.kind == "run"]
    found = []
    for other in own[1:]:
        try:
            for entry in (own[0], other):
                entry.source.check_all()
                entry.source.check_below(entry.source.path / "evals")
            paired = library.pages.call(
                "pair_runs", str(own[0].source.path), str(other.source.path)
            )
        except Exception:  # damaged rollouts of one run hide no other
            paired = None
        found.append({"a": own[0].row["id"], "b": other.row["id"], **(paired or {"tasks": 0})})
    return found


def _place(library: Library, run: str, held: bool, label: str) -> RolloutPlace:
    entry = library.entry(run, "run", "log")
    if entry.row.get("status") == "unreadable":
        raise RecordError(str(entry.row["error"]))
    if label and label not in (known := _held_out_sets(library, entry)):
        there = ", ".join(known[:20]) or "it has none"
        raise BadRequest(f"set={label[:80]} is no further held-out set of this run: {there}.")
    return RolloutPlace(entry, library, held, label)


def _held_out_sets(library: Library, entry: LibraryEntry) -> list[str]:
    """Return the labels of a run's further held-out sets; each is a part of a file's name, and
    never a path.
    """
    lines = library.facts(entry)["evals"] if entry.source.kind == "run" else []
    labels = dict.fromkeys(label for line in lines for label in line.get("sets", ()))
    return [label for label in labels if re.fullmatch(r"[\w.-]+", label)]


def list_steps(library: Library, run: str) -> Json:
    place = _place(library, run, False, "")
    held = replace(place, held=True)
    return {
        "steps": list(place.steps()),
        "evals": list(held.steps()),
        "sets": _held_out_sets(library, place.entry),
    }


def list_rollouts(library: Library, run: str, held: bool, label: str, **asked: Any) -> Json:
    return dict(plain(rollouts.find(_place(library, run, held, label), **asked)))


def show_rollout(library: Library, run: str, held: bool, label: str, **asked: Any) -> Json:
    place = _place(library, run, held, label)
    return dict(
        plain({"row": {**place.entry.row, "config": {}}, "rollout": rollouts.show(place, **asked)})
    )


def list_labs(library: Library) -> Json:
    return {"labs": [entry.row for entry in library.entries("lab")]}


ENDPOINTS: Mapping[str, Callable[..., Json]] = {
    "status": get_status,
    "runs": list_runs,
    "run": show_run,
    "curves": get_curves,
    "compare": compare_runs,
    "steps": list_steps,
    "rollouts": list_rollouts,
    "rollout": show_rollout,
    "labs": list_labs,
    "cause": lambda _, id: findings.explain(id),
    "lab": journals.overview,
    "hypothesis": journals.hypothesis,
}
