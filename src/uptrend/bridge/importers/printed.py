"""Settings that a trainer printed before its metrics: a config's dictionary, `key: value`, the Trainer's banner."""

import ast
import re
from typing import Any

from uptrend.bridge.importers.facts import setting_words

_ANYWHERE = {r"Total optimization steps = ([\d,]+)": "max_steps"}
_BEFORE = {
    r"(?:Rollouts|Generations|Completions) per prompt\s*[:=]\s*(\d+)": "num_generations",
    r"\bKL (?:coef\w*|beta)\s*[:=]\s*([\d.eE+-]+)": "beta",
}
_NAMED = re.compile(r"['\"]?\b([A-Za-z_][\w.]*)['\"]?\s*[:=]\s*['\"]?(-?\d[\d.]*(?:[eE][-+]?\d+)?|True|False|None)\b")
_MOST = 400_000


def printed_facts(text: str, rows_begin: int) -> dict[str, Any]:
    """The settings among what was printed before the first metrics; the first mention of each counts."""
    head = text[: min(rows_begin, _MOST)]
    facts: dict[str, Any] = _whole_config(head)
    for patterns, where in ((_ANYWHERE, text), (_BEFORE, head)):
        for pattern, key in patterns.items():
            match = re.search(pattern, where)
            if match:
                facts.setdefault(key, _value(match.group(1).replace(",", "")))
    for name, value in _NAMED.findall(_without_models(head)):
        if name.rpartition(".")[2] in setting_words():
            facts.setdefault(name, _value(value))
    return facts


def _without_models(text: str) -> str:
    """The text without a model's own configs, whose temperature is not the training's."""
    return re.sub(r"(?i)config(?:uration)?\s*\w*\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", "", text)


def _whole_config(text: str) -> dict[str, Any]:
    """A config printed as one nested dictionary over many lines, as verl does."""
    for start in re.finditer(r"(?m)^\s*\{'\w+': ?(?:\{|'|\d)", text):
        begin = text.index("{", start.start())
        end = _closing(text, begin)
        if end - begin < 200:
            continue
        try:
            value = ast.literal_eval(text[begin:end])
        except (ValueError, SyntaxError, MemoryError):
            continue
        if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
            return value
    return {}


def _closing(text: str, begin: int) -> int:
    depth = 0
    for brace in re.finditer(r"[{}]", text[begin : begin + 100_000]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return begin + brace.end()
    return begin


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
