"""Compare a submission with the answers: python evaluate.py --submission_file submission.csv."""

import argparse
import csv
import json
import math
import sys
from pathlib import Path


def read(path: Path) -> dict[str, str]:
    """Return SalePrice by Id."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["Id"]: row["SalePrice"] for row in csv.DictReader(file)}


parser = argparse.ArgumentParser()
parser.add_argument("--submission_file", type=Path, required=True)
submission = parser.parse_args().submission_file
try:
    answers, given = read(Path(__file__).with_name("answers.csv")), read(submission)
    pairs = [(float(price), float(given[number])) for number, price in answers.items()]
except FileNotFoundError as error:
    sys.exit(f"There is no file {Path(error.filename).name}.")
except KeyError as error:
    sys.exit(f"{submission.name} has no {error}: it needs Id,SalePrice and every row of test.csv.")
except (TypeError, ValueError, OSError, csv.Error):
    sys.exit(f"{submission.name} can't be read: SalePrice must be a number in every row.")
if not all(abs(guess) < 1e9 for _, guess in pairs):  # False for nan, too
    sys.exit("SalePrice must be below 1e9 in every row.")
mean = sum(price for price, _ in pairs) / len(pairs)
squares = sum((price - guess) ** 2 for price, guess in pairs)
spread = sum((price - mean) ** 2 for price, _ in pairs)
print(json.dumps({"rmse": round(math.sqrt(squares / len(pairs)), 2), "r2": round(1 - squares / spread, 4)}))
