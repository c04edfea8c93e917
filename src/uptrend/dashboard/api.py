"""API endpoints, one function each. api.toml describes them in OpenAPI's form."""

import fnmatch
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from uptrend.config import difference
from uptrend.dashboard import findings, journals, rollouts
from uptrend.dashboard.curves import DEFAULT_POINTS, STEP_KEY, TIME_KEY, thin
from uptrend.dashboard.filters import COLUMNS, MAX_QUOTED, BadRequest, choose, known_key, value_of
from uptrend.dashboard.library import Library, LibraryEntry
from uptrend.dashboard.rollouts import RolloutSet
from uptrend.records import RecordError
from uptrend.records.lines import plain
from uptrend.records.metrics import Metric, find_metric, label_of, panels, sections
from uptrend.records.run import step_folders

Json = dict[str, Any]
# Config keys that differ between runs without making them different experiments.
NOT_COMPARED = ("name", "seed")
BOOLEANS_BY_TEXT = {"1": True, "true": True, "0": False, "false": False}
# By type of a parameter in OpenAPI: the function that reads it, and its name in an error.
PARAMETER_TYPES: dict[str, tuple[Callable[[str], Any], str]] = {
    "string": (str, "text"),
    "integer": (int, "a whole number"),
    "number": (float, "a number"),
    "boolean": (BOOLEANS_BY_TEXT.__getitem__, "true or false"),
}
# Largest whole number up to which a browser distinguishes all of them.
MAX_EXACT = 2**53
# Runs on one plot: more lines can't be told apart.
MAX_RUNS_COMPARED = 40
# Names that an error lists.
MAX_LISTED = 20
# The whole step: `seconds/*` matches it, and it is not one of the phases.
STEP_SECONDS_KEY = "seconds/step"
# Title for metrics that the table of metrics lacks.
OTHER_METRICS = "Others"


@cache
def openapi() -> Json:
    """Return the description of the API for programs: api.toml, with what all endpoints share."""
    text = Path(__file__).with_name("api.toml").read_text("utf-8")
    description: Json = tomllib.loads(text)
    description["info"]["version"] = version()
    error = {"$ref": "#/components/responses/error"}
    shared = {"200": {"$ref": "#/components/responses/answer"}, "400": error, "404": error}
    for operations in description["paths"].values():
        for operation in operations.values():
            operation["responses"] = shared | operation.get("responses", {})
            for parameter in operation.setdefault("parameters", []):
                parameter["in"] = "query"
    return description


def call(library: Library, path: str, query: Mapping[str, str]) -> Json:
    """Return an endpoint's answer; BadRequest if a parameter is wrong."""
    parameters = openapi()["paths"][f"/api/{path}"]["get"]["parameters"]
    names = [parameter["name"] for parameter in parameters]
    unknown = sorted(set(query) - set(names))
    if unknown:
        raise BadRequest(
            f"{path} has no parameter {unknown[0][:MAX_QUOTED]}; it has"
            f" {', '.join(names) or 'none'}."
        )
    arguments = {}
    for parameter in parameters:
        name = parameter["name"]
        arguments[name] = _read_parameter(parameter, query.get(name))
    return ENDPOINTS[path](library, **arguments)


def _read_parameter(parameter: Json, text: str | None) -> Any:
    """Return the value of a parameter from the address."""
    name = parameter["name"]
    schema = parameter["schema"]
    kind = schema["type"]
    if text is None or (text == "" and kind != "string"):
        if parameter.get("required"):
            raise BadRequest(f"The parameter {name} is missing: {parameter['description']}")
        return schema.get("default")

    convert, kind_in_words = PARAMETER_TYPES[kind]
    quoted = f"{name}={text[:MAX_QUOTED]}"
    try:
        value = convert(text.lower() if kind == "boolean" else text)
    except (KeyError, ValueError):
        raise BadRequest(f"{quoted} should be {kind_in_words}.") from None
    if kind in ("integer", "number"):
        least = schema.get("minimum", -MAX_EXACT)
        most = schema.get("maximum", MAX_EXACT)
        if not least <= value <= most:  # also true for NaN
            raise BadRequest(f"{quoted} should be from {least:,} to {most:,}.")
    return value


def version() -> str:
    """Return Uptrend's version."""
    # An import would lead up to the packages above this one.
    return str(sys.modules["uptrend"].__version__)


def get_status(library: Library) -> Json:
    counts = {kind: len(library.entries(kind)) for kind in ("run", "log", "lab")}
    folders = [{"path": str(root), "exists": root.exists()} for root in library.roots]
    return {"uptrend": version(), **vars(library.progress), "counts": counts, "folders": folders}


def list_runs(
    library: Library, filter: str, sort: str, group: str, columns: str, limit: int, offset: int
) -> Json:
    rows = choose(library.rows(), filter, sort)
    config_keys = _config_keys(library)
    shown_keys = [key for key in columns.split(",") if key]
    if config_keys:  # before the first run, any key may be one of its config
        for key in (group, *shown_keys):
            if key:
                known_key(key, {*COLUMNS, *config_keys})

    if group:  # groups in the order of their first row
        first_rows: dict[str, int] = {}
        for position, row in enumerate(rows):
            first_rows.setdefault(str(value_of(row, group)), position)
        rows.sort(key=lambda row: first_rows[str(value_of(row, group))])

    page: list[Json] = []
    for row in rows[offset : offset + limit]:
        config = row.get("config", {})
        shown_row = {**row, "config": {key: config.get(key) for key in shown_keys}}
        if group:
            shown_row["group"] = value_of(row, group)
        page.append(shown_row)
    return {"total": len(rows), "rows": page, "keys": config_keys if offset == 0 else []}


def _config_keys(library: Library) -> list[str]:
    keys: set[str] = set()
    for row in library.rows():
        keys.update(row.get("config", ()))
    return sorted(keys)


def _filled_panels(names: Sequence[str], has_evals: bool) -> list[Json]:
    """Return the panels that have something to show, with the metrics of each."""
    filled: list[Json] = []
    for panel in panels():
        kind = panel.get("kind", "lines")
        keys = _matching(names, panel["keys"])
        if not keys:
            keys = _matching(names, panel.get("instead", ()))
        if not keys and not (kind == "held-out" and has_evals):
            continue
        metric = find_metric(keys[0] if keys else "eval/accuracy")
        is_share = kind == "held-out" or (metric is not None and metric.is_share)
        title = panel.get("title") or label_of(keys[0])
        if panel["id"] == "reward" and len(keys) == 2:
            keys = keys[:1]  # its only part is the reward itself
        total = panel.get("total")
        filled_panel = {
            "id": panel["id"],
            "title": title,
            "kind": kind,
            "keys": keys,
            "unit": "share" if is_share else "",
            "total": total if total in names else None,
        }
        filled.append(filled_panel)
    return filled


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of several patterns with *, in the patterns' order."""
    matching: dict[str, None] = {}
    for pattern in patterns:
        for name in names:
            if fnmatch.fnmatchcase(name, pattern) and name != STEP_SECONDS_KEY:
                matching[name] = None
    return list(matching)


def show_run(library: Library, run: str) -> Json:
    entry = library.current_entry(run)
    if not entry.is_readable:
        return {"row": entry.row, "error": entry.row["error"]}
    path = entry.source.path
    trainer = str(entry.row["trainer"])
    table = library.table(entry)
    names = [name for name in table.column_names if table[name].null_count < len(table)]
    metrics = _without_axes(names)
    report = library.report(entry)
    details = _details(library, entry)

    answer: Json = {
        "row": entry.row_without_config,
        "metrics": _metric_sections(metrics),
        "report": findings.page_report(report, str(path), trainer),
        "settings": findings.settings(details["config"], trainer),
        "notes": details["notes"],
    }
    if entry.source.kind == "log":
        answer |= {
            "markers": [],
            "rollouts": bool(details["rollout_steps"]),
            "info": {},
            "evals": list(filter(findings.has_score, details["evals"])),
            "bounds": None,
        }
    else:
        evals: list[Json] = []
        for line in details["evals"]:
            if isinstance(line.get("accuracy"), int | float):
                evals.append(line)
        checkpoints = step_folders(path / "checkpoints").values()
        answer |= {
            "markers": details["markers"],
            "evals": evals,
            "rollouts": (path / "rollouts").is_dir(),
            "info": details["info"],
            "bounds": _reward_bounds(RolloutSet(entry, library)),
            "stopped": details["stopped"],
            "checkpoints": [checkpoint.name for checkpoint in checkpoints],
        }
    has_accuracy = any(line.get("accuracy") is not None for line in answer["evals"])
    answer["panels"] = _filled_panels(metrics, has_accuracy)
    return dict(plain(answer))


def _without_axes(names: Sequence[str]) -> list[str]:
    """Return the columns that are metrics."""
    return [name for name in names if name not in (STEP_KEY, TIME_KEY)]


def _details(library: Library, entry: LibraryEntry) -> Json:
    """Return what is known of a run or a log besides its row and its curves."""
    return library.facts(entry) if entry.source.kind == "run" else library.log_facts(entry)


def _reward_bounds(rollout_set: RolloutSet) -> list[float] | None:
    """Return the smallest and largest reward that a rollout of the last step can get; None if they
    were not recorded.
    """
    last_step = rollout_set.entry.row["step"]
    try:
        bounds: list[float] | None = rollout_set.read("reward_bounds", last_step)
    except RecordError:  # no rollouts were written for it
        return None
    return bounds


def _metric_sections(names: Sequence[str]) -> list[Json]:
    """Return the metrics that a run has, by section of the table of metrics; those that it lacks
    come last.
    """
    titles_by_key: dict[str, str] = {}
    metrics_by_title: dict[str, list[Json]] = {}
    for section in sections():
        metrics_by_title[section.title] = []
        for metric in section.metrics:
            titles_by_key[metric.key] = section.title
    for name in names:
        known = find_metric(name)
        title = titles_by_key.get(known.key, OTHER_METRICS) if known else OTHER_METRICS
        metrics_by_title.setdefault(title, []).append(_metric_row(name, known))
    return [
        {"title": title, "metrics": metrics}
        for title, metrics in metrics_by_title.items()
        if metrics
    ]


def _metric_row(name: str, metric: Metric | None) -> Json:
    if metric is None:
        return {"key": name, "unit": "", "meaning": "", "healthy": ""}
    return {"key": name, "unit": metric.unit, "meaning": metric.meaning, "healthy": metric.healthy}


def get_curves(
    library: Library, run: str, keys: str, points: int, first: int | None, last: int | None
) -> Json:
    table = library.table(_readable_entry(library, run))
    names = _split_names(keys, table.column_names)
    if not names:
        for panel in _filled_panels(table.column_names, has_evals=False):
            names += panel["keys"]
            if panel["total"]:
                names.append(panel["total"])
    return thin(table, dict.fromkeys(names), points or DEFAULT_POINTS, first, last)


def _readable_entry(library: Library, run: str) -> LibraryEntry:
    """Return a run or a log; RecordError if its files can't be read."""
    entry = library.entry(run, "run", "log")
    if not entry.is_readable:
        raise RecordError(str(entry.row["error"]))
    return entry


def _split_names(text: str, known: Collection[str]) -> list[str]:
    """Split names that are separated by commas.

    A known name may have commas itself; of several that fit, the longest counts.
    """
    max_words = 1 + max((name.count(",") for name in known), default=0)
    names: list[str] = []
    words = text.split(",")
    start = 0
    while start < len(words):
        end = min(start + max_words, len(words))
        while end > start + 1 and ",".join(words[start:end]) not in known:
            end -= 1
        names.append(",".join(words[start:end]))
        start = end
    return [name for name in names if name]


def compare_runs(library: Library, runs: str) -> Json:
    known_ids = {row["id"] for row in library.rows()}
    ids = list(dict.fromkeys(_split_names(runs, known_ids)))
    if len(ids) > MAX_RUNS_COMPARED:
        raise BadRequest(
            f"{len(ids)} runs can't be told apart on one plot; choose {MAX_RUNS_COMPARED} at most."
        )
    entries = [library.current_entry(id) for id in ids]
    readable = [entry for entry in entries if entry.is_readable]

    names: dict[str, None] = {}  # columns of all runs, in the order of their first run
    for entry in readable:
        names |= dict.fromkeys(library.table(entry).column_names)
    rows = [entry.row for entry in readable]
    has_evals = any(row.get("after") or row.get("before") for row in rows)
    answer = {
        "rows": [entry.row_without_config for entry in entries],
        "ids": [row["id"] for row in rows],
        "differences": _config_differences(readable),
        "seeds": _ids_by_config(readable),
        "paired": _pairs(library, readable),
        "panels": _filled_panels(list(names), has_evals),
        "evals": {entry.row["id"]: _accuracies(library, entry) for entry in readable},
        "metrics": _metric_sections(_without_axes(list(names))),
    }
    return dict(plain(answer))


def _compared_config(entry: LibraryEntry) -> Json:
    """Return a run's config as dotted keys, without those that are not compared."""
    config = entry.row.get("config", {})
    return {key: value for key, value in config.items() if key not in NOT_COMPARED}


def _config_differences(entries: Sequence[LibraryEntry]) -> dict[str, list[Any]]:
    """Return the values, by run, of each config key that differs between runs."""
    configs = [_compared_config(entry) for entry in entries]
    differences: dict[str, list[Any]] = {}
    for key in sorted(set().union(*configs)):
        values = [config.get(key) for config in configs]
        if any(value != values[0] for value in values):
            differences[key] = values
    return differences


def _accuracies(library: Library, entry: LibraryEntry) -> list[Json]:
    """Return a run's evaluations as points with their intervals."""
    accuracies: list[Json] = []
    for line in _details(library, entry)["evals"]:
        if line.get("accuracy") is None:
            continue
        accuracy = {
            "step": line.get("step"),
            "accuracy": line["accuracy"],
            "low": line.get("low"),
            "high": line.get("high"),
        }
        accuracies.append(accuracy)
    return accuracies


def _ids_by_config(entries: Sequence[LibraryEntry]) -> list[list[str]]:
    """Return groups of runs that differ in seed and name alone, as their ids."""
    groups: list[tuple[Json, list[str]]] = []
    for entry in entries:
        config = _compared_config(entry)
        for other_config, ids in groups:
            if other_config and not difference(other_config, config):
                ids.append(entry.row["id"])
                break
        else:
            groups.append((config, [entry.row["id"]]))
    return [ids for _, ids in groups]


def _pairs(library: Library, entries: Sequence[LibraryEntry]) -> list[Json]:
    """Compare each run with the first, on the held-out tasks that both attempted."""
    runs = [entry for entry in entries if entry.source.kind == "run"]
    pairs: list[Json] = []
    for other in runs[1:]:
        try:
            for entry in (runs[0], other):
                entry.source.check_all()
                entry.source.check_below(entry.source.path / "evals")
            comparison = library.page_reader.call(
                "pair_runs", str(runs[0].source.path), str(other.source.path)
            )
        except Exception:  # damaged rollouts of one run hide no other
            comparison = None
        ids = {"a": runs[0].row["id"], "b": other.row["id"]}
        pairs.append(ids | (comparison or {"tasks": 0}))
    return pairs


def _rollout_set(library: Library, run: str, heldout: bool, label: str) -> RolloutSet:
    entry = _readable_entry(library, run)
    if label:
        labels = _heldout_labels(library, entry)
        if label not in labels:
            listed = ", ".join(labels[:MAX_LISTED]) or "it has none"
            raise BadRequest(
                f"label={label[:MAX_QUOTED]} is no further held-out set of this run: {listed}."
            )
    return RolloutSet(entry, library, heldout, label)


def _heldout_labels(library: Library, entry: LibraryEntry) -> list[str]:
    """Return the labels of a run's further held-out sets."""
    if entry.source.kind != "run":
        return []
    labels: dict[str, None] = {}
    for line in library.facts(entry)["evals"]:
        labels |= dict.fromkeys(line.get("sets", ()))
    # A label becomes a part of a file's name, and must never be a path.
    return [label for label in labels if re.fullmatch(r"[\w.-]+", label)]


def list_steps(library: Library, run: str) -> Json:
    trained = _rollout_set(library, run, heldout=False, label="")
    evaluated = replace(trained, heldout=True)
    return {
        "steps": list(trained.steps()),
        "evals": list(evaluated.steps()),
        "sets": _heldout_labels(library, trained.entry),
    }


def list_rollouts(library: Library, run: str, heldout: bool, label: str, **query: Any) -> Json:
    rollout_set = _rollout_set(library, run, heldout, label)
    return dict(plain(rollouts.find_rollouts(rollout_set, **query)))


def show_rollout(library: Library, run: str, heldout: bool, label: str, **query: Any) -> Json:
    rollout_set = _rollout_set(library, run, heldout, label)
    rollout = rollouts.show_rollout(rollout_set, **query)
    return dict(plain({"row": rollout_set.entry.row_without_config, "rollout": rollout}))


def list_labs(library: Library) -> Json:
    return {"labs": [entry.row for entry in library.entries("lab")]}


def explain_cause(_: Library, id: str) -> Json:
    return findings.explain(id)


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
    "cause": explain_cause,
    "lab": journals.overview,
    "hypothesis": journals.hypothesis,
}
