"""Passengers of a made-up Titanic, whose survival follows known rules and some luck."""

import csv
import io

import numpy as np

TRAIN, VALIDATION, TEST = 1000, 1000, 2000
LUCK = 0.05  # part of the passengers for whom the rule is turned around
SURNAMES = ("Abbott", "Bell", "Carter", "Dahl", "Evans", "Fischer", "Grant", "Hansen", "Ivers", "Jonas")


def make(seed: int, heldout: bool) -> dict[str, dict[str, bytes]]:
    """Return the files of one example; held-out examples have random numbers of their own."""
    # Only random() is drawn from, and only added, multiplied and compared: equal bytes on every machine.
    rng = np.random.Generator(np.random.PCG64([1912, seed, int(heldout)]))
    rows = [passenger(number, *rng.random(16).tolist()) for number in range(1, 1 + TRAIN + VALIDATION + TEST)]
    columns = list(rows[0])
    unlabeled = [column for column in columns if column != "Survived"]
    order = np.argsort(rng.random(VALIDATION + TEST), kind="stable") + TRAIN  # which splits the rows of test.csv are in
    return {
        "workspace": {"train.csv": table(rows[:TRAIN], columns), "test.csv": table(rows[TRAIN:], unlabeled)},
        "validation": {"answers.csv": answers(rows, sorted(order[:VALIDATION]))},
        "test": {"answers.csv": answers(rows, sorted(order[VALIDATION:]))},
    }


def passenger(number: int, *chance: float) -> dict[str, object]:
    """Draw a passenger; women, children and the rich survive, large families of the third class do not."""
    pclass = 1 if chance[0] < 0.28 else 2 if chance[0] < 0.5 else 3
    female, child = chance[1] < 0.42, chance[2] < 0.24
    age = int(1 + 13.9 * chance[3]) if child else int(15 + 15 * (chance[3] + chance[4] + chance[5]))
    large = child or chance[6] < 0.3
    siblings, parents = (int(1 + 4 * chance[7]), int(1 + 2 * chance[8])) if large else (int(1.3 * chance[7]), 0)
    # Fares of a first-class family and of a single traveler overlap: class does not tell the fare.
    fare = round((0, 16, 10, 6)[pclass] * (1 + 3 * chance[9]) + (0, 9, 6, 4)[pclass] * (siblings + parents), 2)
    expensive = fare >= 30
    survives = (pclass < 3 or not expensive) if female or child else (pclass == 1 and expensive)
    title = ("Miss" if child or chance[10] < 0.5 else "Mrs") if female else "Master" if child else "Mr"
    port = chance[11] + (0.08 if pclass == 1 else 0)
    return {
        "PassengerId": number,
        "Survived": int(survives != (chance[12] < LUCK)),
        "Pclass": pclass,
        "Name": f"{title} {SURNAMES[int(10 * chance[13])]}",
        "Sex": "female" if female else "male",
        "Age": "" if chance[14] < 0.08 else age,
        "SibSp": siblings,
        "Parch": parents,
        "Ticket": 100000 + int(900000 * chance[15]),
        "Fare": f"{fare:.2f}",
        "Cabin": f"C{1 + int(120 * chance[4])}" if pclass == 1 and chance[5] < 0.7 else "",
        "Embarked": "C" if port > 0.8 else "Q" if port < 0.1 else "S",
    }


def answers(rows: list[dict[str, object]], chosen: list[int]) -> bytes:
    """Return the true labels of some rows."""
    return table([rows[index] for index in chosen], ["PassengerId", "Survived"])


def table(rows: list[dict[str, object]], columns: list[str]) -> bytes:
    """Write rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
