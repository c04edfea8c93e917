"""Write rows.jsonl: word problems in the form of GSM8K, made from templates: python recipes/gsm8k/make_rows.py"""

# ruff: noqa: SIM905 (one question per line; words as a text)

import json
import random
from pathlib import Path

COUNT = 240  # each with another result: the right answer of one question is wrong for all others
NAMES = "Ana Ben Carla Dev Ema Farid Grace Hugo Ines Jun Kofi Lena Mara Nils Omar Priya Rosa Sam Tara Umar".split()
THINGS = (
    "apples books coins eggs flowers marbles pencils shells stamps stickers tickets toys".split()
)
# Question, then its steps: an expression (x is the result of the step before) and the words after it.
TEMPLATES = [
    (
        "{n} has {a} {t} and buys {b} more. Then {n} gives {c} of them to {m}. How many {t} does {n} have left?",
        ("a + b", "{t} after buying"), ("x - c", "{t} left"),
    ),
    (
        "A shop sells {t} in boxes of {a}. {n} buys {b} boxes and already had {c} {t} at home. How many {t} does {n} have now?",
        ("a * b", "{t} in the boxes"), ("x + c", "{t} in all"),
    ),
    (
        "{n} shares {c} {t} equally among {a} friends. Each friend already had {b}. How many {t} does each friend have?",
        ("c / a", "new {t} for each friend"), ("x + b", "{t} for each friend"),
    ),
    (
        "{n} earns ${a} per hour and works {b} hours on Saturday and {d} hours on Sunday. How many dollars does {n} earn?",
        ("b + d", "hours of work"), ("x * a", "dollars"),
    ),
    (
        "A bus starts with {c} passengers. At the first stop {a} get off and {b} get on; at the second stop {d} get off. How many passengers are on the bus now?",
        ("c - a", "passengers after {a} get off"), ("x + b", "passengers after {b} get on"), ("x - d", "passengers"),
    ),
    (
        "{n} reads {a} pages every day. The book has {c} pages, and {n} has read for {b} days. How many pages are left?",
        ("a * b", "pages read"), ("c - x", "pages left"),
    ),
    (
        "{m} is {a} years old. {n} is {b} times as old as {m}. How old will {n} be in {d} years?",
        ("a * b", "years is the age of {n} today"), ("x + d", "years"),
    ),
    (
        "A garden has {a} rows of {b} trees and {d} rows of {e} bushes. How many plants are in the garden?",
        ("a * b", "trees"), ("d * e", "bushes"), ("a * b + d * e", "plants"),
    ),
    (
        "{n} pays with ${c} for {a} {t} that cost ${b} each. How many dollars of change does {n} get?",
        ("a * b", "dollars for the {t}"), ("c - x", "dollars of change"),
    ),
    (
        "{n} and {m} collect {t}. {n} collects {a} per day and {m} collects {b} per day. How many {t} do they have together after {d} days?",
        ("a + b", "{t} per day together"), ("x * d", "{t}"),
    ),
    (
        "A class of {c} children is split into groups of {a}. Each group gets {b} {t}. How many {t} are needed?",
        ("c / a", "groups"), ("x * b", "{t}"),
    ),
    (
        "{n} runs {a} kilometers on each of {b} days and walks {d} kilometers on the day after. How many kilometers is that in all?",
        ("a * b", "kilometers of running"), ("x + d", "kilometers"),
    ),
]  # fmt: skip


def make(random: random.Random) -> dict[str, str] | None:
    """Return a row; None where its numbers do not come out as small whole ones."""
    question, *steps = random.choice(TEMPLATES)
    numbers = {letter: random.randint(2, 15) for letter in "abde"} | {"c": random.randint(10, 250)}
    words = (
        dict(zip("nm", random.sample(NAMES, 2), strict=True))
        | {"t": random.choice(THINGS)}
        | numbers
    )
    lines, x = list[str](), 0.0
    for expression, said in steps:
        result = eval(expression, {}, {**numbers, "x": x})  # templates of this file alone
        shown = "".join(
            str(numbers.get(part, int(x) if part == "x" else part)) for part in expression
        )
        if result != int(result) or not 0 < result < 400:
            return None
        x = int(result)
        lines.append(f"{shown} = {x} {said.format(**words)}.")
    return {"question": question.format(**words), "answer": "\n".join([*lines, f"#### {int(x)}"])}


def main() -> None:
    """Write the file, the same each time."""
    chance, rows = random.Random(0), dict[str, dict[str, str]]()  # by result
    while len(rows) < COUNT:
        if row := make(chance):
            rows.setdefault(row["answer"].rpartition(" ")[2], row)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows.values()]
    Path(__file__).with_name("rows.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
