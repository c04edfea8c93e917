"""The lab: hypotheses, experiments, verdicts and the journal that keeps them."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from uptrend.records import LabError

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def texts(section: str) -> Mapping[str, str]:
    """Return the sentences of one section of texts.toml."""
    text = (files("uptrend.lab") / "texts.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)[section])


def lab_error(reason: str, **values: Any) -> LabError:
    """Return an error with a sentence of texts.toml."""
    return LabError(texts("errors")[reason].format(**values))


@cache
def templates() -> "Environment":
    """Return the environment of templates/, for plain text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from uptrend.config.tables import to_key, to_toml
    from uptrend.present.formatting import number, p_value, percent

    loader = PackageLoader("uptrend.lab")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True
    )
    environment.filters |= {
        "number": number,
        "p_value": p_value,
        "percent": percent,
        "toml": to_toml,
        "key": to_key,
    }
    return environment
