"""Houses whose price is a sum of known parts and some noise, with empty cells."""

import csv
import io

import numpy as np

TRAIN, VALIDATION, TEST = 800, 800, 1600
PLACES = {"Airport": -32, "Brook": -18, "Center": 6, "Dunes": 28, "Elm": -4, "Forest": 42}  # thousands
STYLES = {"1Story": 0, "2Story": 9, "Split": -9}
EMPTY = {"Neighborhood": 0.02, "LotFrontage": 0.2, "GrLivArea": 0.05, "YearBuilt": 0.1, "GarageCars": 0.05}


def make(seed: int, heldout: bool) -> dict[str, dict[str, bytes]]:
    """Return the files of one example; held-out examples have random numbers of their own."""
    # Only random() is drawn from, and only added, multiplied and compared: equal bytes on every machine.
    rng = np.random.Generator(np.random.PCG64([1978, seed, int(heldout)]))
    rows = [house(number, *rng.random(24).tolist()) for number in range(1, 1 + TRAIN + VALIDATION + TEST)]
    columns = list(rows[0])
    unlabeled = [column for column in columns if column != "SalePrice"]
    order = np.argsort(rng.random(VALIDATION + TEST), kind="stable") + TRAIN  # which splits the rows of test.csv are in
    return {
        "workspace": {"train.csv": table(rows[:TRAIN], columns), "test.csv": table(rows[TRAIN:], unlabeled)},
        "validation": {"answers.csv": answers(rows, sorted(order[:VALIDATION]))},
        "test": {"answers.csv": answers(rows, sorted(order[VALIDATION:]))},
    }


def house(number: int, *chance: float) -> dict[str, object]:
    """Draw a house; the parts of its price are in thousands."""
    place, style = list(PLACES)[int(6 * chance[0])], list(STYLES)[int(3 * chance[1])]
    area = int(700 + 500 * (chance[2] + chance[3] + chance[4]))
    quality = int(2 + 3 * (chance[5] + chance[6] + chance[7]))
    year = int(1930 + 45 * (chance[8] + chance[9]))
    lot = int(2000 + 2 * area + 9000 * chance[10])
    garage = int(4 * chance[11])
    price = PLACES[place] + STYLES[style] + 0.09 * area + 13 * quality + 0.7 * (year - 1930) + 7 * garage
    price += 0.001 * lot + 17 * (sum(chance[12:16]) - 2)  # noise with a standard deviation of 9.8
    row = {
        "Id": number,
        "Neighborhood": place,
        "HouseStyle": style,
        "LotArea": lot,
        "LotFrontage": int(20 + lot * 0.004 + 40 * chance[16]),
        "OverallQual": quality,
        "GrLivArea": area,
        "YearBuilt": year,
        "GarageCars": garage,
        "SalePrice": int(1000 * price),
    }
    return row | {name: "" for (name, share), drawn in zip(EMPTY.items(), chance[17:22], strict=True) if drawn < share}


def answers(rows: list[dict[str, object]], chosen: list[int]) -> bytes:
    """Return the true prices of some rows."""
    return table([rows[index] for index in chosen], ["Id", "SalePrice"])


def table(rows: list[dict[str, object]], columns: list[str]) -> bytes:
    """Write rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
