"""Steps of several processes as one: the rows of a generation side by side in the order of the
processes, in which TRL makes its groups. No torch.

B = rollouts of a generation, P = width of the padded prompts, T = width of the padded completions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import Call, LossPass, TrlBatch, TrlStep, as_numpy

# Steps for which what another process saw of the same step is waited for. They train in step with
# each other, so that one that is further behind is not watched, or its watch has failed.
MAX_STEPS_BEHIND = 8

# Batches of one process's evaluation, its seconds, and the step.
Evaluation = tuple[list[TrlBatch], float | None, int]

# Tensors of the prompts are padded on the left, those of the completions on the right.
PROMPT_TENSORS = ("prompt_ids", "prompt_mask")


class StepCollector:
    """Brings together what the processes saw of one step."""

    def __init__(
        self,
        processes: int,
        take_step: Callable[[list[TrlStep]], None],
        take_evaluation: Callable[..., None],
        report_absence: Callable[[int], None],
    ) -> None:
        self._processes = processes
        self._take_step = take_step
        self._take_evaluation = take_evaluation
        self._report_absence = report_absence
        self.absent: set[int] = set()  # processes that nobody waits for any more
        self._steps: dict[int, dict[int, TrlStep]] = {}  # by step and process
        self._evaluations: dict[int, dict[int, Evaluation]] = {}
        self._last_step = -1  # newest that was passed on

    def add_step(self, process: int, step: TrlStep) -> None:
        """Add what a process saw of a step; it is passed on once all have."""
        if step.step <= self._last_step:
            return  # too late
        self._steps.setdefault(step.step, {})[process] = step
        self._pass_on_steps(max(self._steps) - MAX_STEPS_BEHIND)

    def add_evaluation(self, process: int, evaluation: Evaluation) -> None:
        """Add a process's part of an evaluation."""
        *_, step = evaluation
        self._evaluations.setdefault(step, {})[process] = evaluation
        if len(self._evaluations[step]) == self._processes - len(self.absent):
            self._pass_on_evaluation(step)

    def flush(self) -> None:
        """Pass on what has come, whole or not."""
        self._pass_on_steps(max(self._steps, default=0))
        for step in sorted(self._evaluations):
            self._pass_on_evaluation(step)

    def _pass_on_steps(self, last_due: int) -> None:
        """Pass on steps that all processes have sent, and those up to `last_due` in any case."""
        for number in sorted(self._steps):
            by_process = self._steps[number]
            is_whole = 0 in by_process and len(by_process) >= self._processes - len(self.absent)
            if not is_whole and number > last_due:
                return
            del self._steps[number]
            self._last_step = number
            if 0 not in by_process:
                continue  # the first process left it out, and reports so
            first = by_process[0]
            alike = {i: step for i, step in by_process.items() if _is_alike(step, first)}
            for process in range(self._processes):
                if process not in alike and process not in self.absent:
                    self.absent.add(process)
                    self._report_absence(process)
            self._take_step([alike[process] for process in sorted(alike)])

    def _pass_on_evaluation(self, step: int) -> None:
        by_process = self._evaluations.pop(step)
        batches: list[TrlBatch] = []
        for process in sorted(by_process):
            batches += by_process[process][0]
        _, seconds, _ = by_process[min(by_process)]
        self._take_evaluation(batches, seconds, step)


def merge_steps(steps: Sequence[TrlStep], batches: Mapping[int, TrlBatch]) -> TrlStep:
    """Merge one step of several processes, in their order.

    batches  merged generations of earlier steps, by number
    """
    first = steps[0]
    merged = [merge_batches(parts) for parts in zip(*(step.batches for step in steps), strict=True)]
    known = {**batches, **{batch.number: batch for batch in merged}}
    passes: list[LossPass] = []
    for parts in zip(*(step.passes for step in steps), strict=True):
        batch = known.get(parts[0].batch)
        if batch is not None:  # else it is dropped: its generation never came
            passes.append(merge_passes(parts, batch))
    return replace(
        first,
        batches=merged,
        passes=passes,
        moved=merge_moved([step.moved for step in steps if step.moved]),
        gaps=mean_by_name([step.gaps for step in steps]),
        sampling=max(step.sampling for step in steps),
        seconds=max(step.seconds for step in steps),
        waited=max(step.waited for step in steps),
        memory=max(step.memory for step in steps),
    )


def merge_batches(batches: Sequence[TrlBatch]) -> TrlBatch:
    """Merge the rows that each process has of one generation."""
    prompt_width = max(batch.output["prompt_ids"].shape[1] for batch in batches)
    width = max(batch.output["completion_mask"].shape[1] for batch in batches)
    output: dict[str, Any] = {}
    for name in batches[0].output:
        tensors = [as_numpy(batch.output[name]) for batch in batches]
        if tensors[0].ndim > 1:
            is_prompt = name in PROMPT_TENSORS
            left = prompt_width if is_prompt else 0
            right = 0 if is_prompt else width
            tensors = [_pad(values, left, right) for values in tensors]
        output[name] = np.concatenate(tensors)

    calls: list[Call] = []
    for number in range(max(len(batch.calls) for batch in batches)):
        own = [batch.calls[number] for batch in batches if number < len(batch.calls)]
        prompts = [ids for call in own for ids in call.prompts]
        written = [ids for call in own for ids in call.written]
        calls.append(Call(prompts, written))
    return replace(
        batches[0],
        answers=[answer for batch in batches for answer in batch.answers],
        prompts=[prompt for batch in batches for prompt in batch.prompts],
        completions=[completion for batch in batches for completion in batch.completions],
        written=[ids for batch in batches for ids in batch.written],
        rewards=np.concatenate([as_numpy(batch.rewards) for batch in batches]),
        output=output,
        calls=calls,
        seconds=max(batch.seconds for batch in batches),
        process_sizes=tuple(batch.size for batch in batches),
    )


def merge_passes(passes: Sequence[LossPass], batch: TrlBatch) -> LossPass:
    """Merge the passes that processes made at the same time over their rows of a generation."""
    prompt_width = batch.output["prompt_ids"].shape[1]
    width = batch.output["completion_mask"].shape[1]
    starts = np.cumsum([0, *batch.process_sizes])
    rows: list[NDArray[Any]] = []
    attention: list[NDArray[Any]] = []
    logprobs: list[NDArray[Any]] = []
    entropies: list[NDArray[Any]] = []
    for loss_pass, start in zip(passes, starts, strict=False):
        own_logprobs = as_numpy(loss_pass.logprobs)
        own_attention = as_numpy(loss_pass.attention)
        own_width = own_logprobs.shape[1]
        rows.append(as_numpy(loss_pass.rows) + start)
        logprobs.append(_pad(own_logprobs, 0, width))
        prompts = _pad(own_attention[:, :-own_width], prompt_width, 0)
        completions = _pad(own_attention[:, -own_width:], 0, width)
        attention.append(np.concatenate([prompts, completions], axis=1))
        if loss_pass.entropies is not None:
            entropies.append(_pad(as_numpy(loss_pass.entropies), 0, width))
    losses = [float(each.loss) for each in passes if each.loss is not None]
    return replace(
        passes[0],
        rows=np.concatenate(rows),
        attention=np.concatenate(attention),
        logprobs=np.concatenate(logprobs),
        entropies=np.concatenate(entropies) if len(entropies) == len(passes) else None,
        # Gradients are averaged over processes, and so is what they are gradients of.
        loss=float(np.mean(losses)) if losses else None,
        is_first=all(each.is_first for each in passes),
    )


def _is_alike(step: TrlStep, first: TrlStep) -> bool:
    """Return True where two processes saw the same of a step: else the watch of one has failed."""
    return (len(step.batches), len(step.passes)) == (len(first.batches), len(first.passes))


def merge_moved(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge metrics of the parts of the weights that processes hold: lengths of parts at right
    angles, and shares of parts of the same size.
    """
    merged = mean_by_name(parts)
    for name in merged:
        if not name.endswith("/share"):
            lengths = [part[name] for part in parts if name in part]
            merged[name] = float(np.sqrt(np.sum(np.square(lengths))))
    return merged


def mean_by_name(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over those that have it."""
    values: dict[str, list[float]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(own)) for name, own in values.items()}


def _pad(values: NDArray[Any], left: int, right: int) -> NDArray[Any]:
    """Pad the rows with 0 to a width: on the left to `left`, or on the right to `right`."""
    width = values.shape[1]
    before = max(0, left - width) if left else 0
    after = max(0, right - width) if right else 0
    return np.pad(values, ((0, 0), (before, after)))
