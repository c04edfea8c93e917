"""The trainer's own moments, passed on; what goes wrong there stays there."""

from typing import Any, Protocol

from transformers import TrainerCallback

from uptrend.bridge.trl.guard import Guard


class Listener(Protocol):
    """Who is told."""

    guard: Guard

    def begin(self) -> None: ...
    def step_begins(self) -> None: ...
    def update_comes(self, optimizer: Any) -> None: ...
    def update_done(self) -> None: ...
    def step_ends(self) -> None: ...
    def evaluated(self, metrics: dict[str, Any]) -> None: ...


class Moments(TrainerCallback):  # type: ignore[misc]
    """A callback that a trainer calls."""

    def __init__(self, watch: Listener) -> None:
        self._watch = watch

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        with self._watch.guard("the beginning"):
            self._watch.begin()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        with self._watch.guard("steps"):
            self._watch.step_begins()

    def on_pre_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        with self._watch.guard("updates"):
            self._watch.update_comes(optimizer)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        with self._watch.guard("weights"):
            self._watch.update_done()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        with self._watch.guard("steps"):
            self._watch.step_ends()

    def on_evaluate(self, *_: Any, metrics: dict[str, Any] | None = None, **__: Any) -> None:
        with self._watch.guard("evaluations"):
            self._watch.evaluated(metrics or {})
