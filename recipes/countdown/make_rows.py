"""Write rows.jsonl: numbers, a target, and one expression that reaches it: python recipes/countdown/make_rows.py"""

import json
import random
from pathlib import Path
from typing import Any

COUNT = 240


def make(chance: random.Random) -> dict[str, Any] | None:
    """Return a row of two or three numbers; None where the target is no small positive one."""
    numbers = [chance.randint(1, 20) for _ in range(chance.choice((2, 3)))]
    answer = str(numbers[0])
    for i, number in enumerate(numbers[1:], start=1):
        sign = chance.choice("+-*")
        answer = f"{f'({answer})' if sign == '*' and i > 1 else answer} {sign} {number}"
    target = eval(answer)  # made of the numbers above
    if not 0 < target <= 100:
        return None
    chance.shuffle(numbers)
    return {"numbers": numbers, "target": target, "answer": answer}


def main() -> None:
    """Write the file, the same each time."""
    chance, rows = random.Random(0), dict[str, dict[str, Any]]()
    while len(rows) < COUNT:
        if row := make(chance):
            rows.setdefault(f"{sorted(row['numbers'])} {row['target']}", row)
    text = "".join(json.dumps(row) + "\n" for row in rows.values())
    Path(__file__).with_name("rows.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
