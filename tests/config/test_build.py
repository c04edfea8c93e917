"""A taskset's options become its dataclass by the same rules."""

from dataclasses import dataclass

import pytest

from uptrend.config import build
from uptrend.records import ConfigError


@dataclass(frozen=True)
class Options:
    """As a taskset declares them."""

    path: str
    digits: int = 2
    limit: int | None = None
    strict: bool | None = None


def test_options_become_their_dataclass() -> None:
    assert build(Options, {"path": "a", "limit": 3}, "tasks") == Options("a", 2, 3)
    assert build(Options, {"path": "a", "strict": False}, "tasks").strict is False


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "tasks.path is missing."),
        ({"path": "a", "digit": 3}, "tasks.digit is not a known key. Did you mean digits?"),
        ({"path": "a", "limit": "x"}, "tasks.limit = 'x' should be a whole number."),
        ({"path": 1}, "tasks.path = 1 should be a text."),
    ],
)
def test_wrong_options_are_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Options, values, "tasks")
    assert str(caught.value) == said
