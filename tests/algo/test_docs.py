"""The page's example runs and shows what it says."""

import re
from pathlib import Path
from typing import Any

from uptrend.algo import ESTIMATORS, LOSSES

PAGE = (Path(__file__).parents[2] / "docs" / "algo.md").read_text()


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    gradient = names["logprobs"].grad
    assert (gradient[[0, 3], 1:] < 0).all()
    assert (gradient[[1, 2], 1:] > 0).all()
    assert (gradient[:, 0] == 0).all()


def test_every_loss_and_estimator_is_described() -> None:
    for name in (*LOSSES, *ESTIMATORS):
        assert f"| `{name}` |" in PAGE, name
