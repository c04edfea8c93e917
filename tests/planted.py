"""Faults of other trainers, planted into ours from outside; as a script, it plants one and runs `uptrend`.

    python tests/planted.py blind train recipes/musique/atlas.toml --name blind

`blind`: verifiers 0.1.2 to 0.1.6 passed the loss mask as the attention mask. The learner's log-probabilities are
then computed without the question and without any tool result; the sampler sees everything.
"""

import sys
from collections.abc import Callable
from typing import Any

from uptrend.records import Role
from uptrend.training import learner


def blind() -> None:
    """Where lines are made for the learner, attention sees only what the model said."""
    make = learner._line

    def make_blind(ids: Any, roles: Any, visible: Any, group: int, rollout: int) -> Any:
        return make(ids, roles, visible & (roles == int(Role.MODEL)), group, rollout)

    learner._line = make_blind  # type: ignore[assignment]


FAULTS: dict[str, Callable[[], None]] = {"blind": blind}

if __name__ == "__main__":
    from uptrend.cli.main import main

    FAULTS[sys.argv.pop(1)]()
    main()
