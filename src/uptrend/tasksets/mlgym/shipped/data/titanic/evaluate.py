"""Compare a submission with the answers: python evaluate.py --submission_file submission.csv."""

import argparse
import csv
import json
import sys
from pathlib import Path


def read(path: Path) -> dict[str, str]:
    """Return Survived by PassengerId."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["PassengerId"]: row["Survived"] for row in csv.DictReader(file)}


parser = argparse.ArgumentParser()
parser.add_argument("--submission_file", type=Path, required=True)
submission = parser.parse_args().submission_file
try:
    answers, given = read(Path(__file__).with_name("answers.csv")), read(submission)
    guesses = {number: float(given[number]) for number in answers}
except FileNotFoundError as error:
    sys.exit(f"There is no file {Path(error.filename).name}.")
except KeyError as error:
    sys.exit(
        f"No {error} in {submission.name}: it needs the columns PassengerId and Survived, and every row of test.csv."
    )
except (TypeError, ValueError, OSError, csv.Error):
    sys.exit(f"{submission.name} can't be read: Survived must be 0 or 1 in every row.")
if set(guesses.values()) - {0.0, 1.0}:
    sys.exit("Survived must be 0 or 1 in every row.")
right = sum(guesses[number] == float(answers[number]) for number in answers)
print(json.dumps({"accuracy": right / len(answers)}))
