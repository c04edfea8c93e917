"""Gold answers: where a dataset keeps them, and how they may stand in a completion."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = (
    "answer", "answers", "gold", "gold_answer", "ground_truth", "solution", "target", "final_answer", "expected",
    "expected_answer", "correct_answer", "reference_answer", "label", "labels", "result",
)  # fmt: skip
"""Names of columns that hold what is right, likeliest first."""

RENDERINGS = (
    "{}", " {}", "#### {}", "\\boxed{{{}}}", "$\\boxed{{{}}}$", "<answer>{}</answer>", "<answer>\n{}\n</answer>",
    "<think>\n...\n</think>\n<answer>\n{}\n</answer>", "<think>\n...\n</think>\n\\boxed{{{}}}",
    "<reasoning>\n...\n</reasoning>\n<answer>\n{}\n</answer>\n", "Answer: {}", "The answer is {}.",
    "... Therefore, the final answer is {}", '{{"answer": "{}"}}', "```\n{}\n```",
)  # fmt: skip
"""The ways in which reward functions in the wild want an answer to be written."""

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def gold_column(example: Mapping[str, Any]) -> str | None:
    """The column of a dataset's row that holds the right answer, by its name."""
    lowered = {key.lower(): key for key in example}
    return next((lowered[name] for name in COLUMNS if name in lowered and answer_of(example[lowered[name]])), None)


def answer_of(value: Any) -> str:
    """A gold answer as text; empty where the value holds none."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple) and value:
        return answer_of(value[0])
    if isinstance(value, Mapping):
        return next((answer_of(value[key]) for key in COLUMNS if key in value), "")
    return ""


def answers_of(examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """The right answers of a dataset's rows; empty where they hold none."""
    column = gold_column(examples[0])
    return [core_of(answer_of(example.get(column))) if column else "" for example in examples]


def core_of(answer: str) -> str:
    """The answer itself, out of a worked solution: behind ####, in a box or in tags."""
    if "####" in answer:
        return answer.rsplit("####", 1)[1].strip()
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", answer)
    tagged = re.findall(r"<answer>(.*?)</answer>", answer, re.DOTALL)
    found = boxed or tagged
    return found[-1].strip() if found else answer.strip()


def corrupted(core: str, others: Sequence[str]) -> str:
    """A wrong answer of the same kind."""
    if re.fullmatch(r"-?\d[\d,]*", core):
        return str(int(core.replace(",", "")) + 1)
    if re.fullmatch(r"-?\d+\.\d+", core):
        return str(float(core) + 1)
    other = next((other for other in others if other.strip().lower() != core.strip().lower()), "")
    return other or core[::-1] + "x"


def number_in(text: str) -> float | None:
    """The last number in a text."""
    found = NUMBER.findall(text.replace(",", ""))
    return float(found[-1]) if found else None
