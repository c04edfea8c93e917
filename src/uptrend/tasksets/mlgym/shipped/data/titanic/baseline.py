"""Guess what most similar passengers of train.csv did."""

import csv

import numpy as np

features = ["Embarked"]  # similar: equal in these columns
width = 60  # Age and Fare are cut into steps of this width


def group(row):
    steps = {n: min(float(row[n]) // width, 2) for n in ("Age", "Fare") if row[n]}
    return tuple(steps.get(n, row[n]) for n in features)


seen = {}
for row in csv.DictReader(open("train.csv")):
    seen.setdefault(group(row), []).append(int(row["Survived"]))
rows = list(csv.DictReader(open("test.csv")))
guesses = [int(np.mean(seen.get(group(row), 0)) > 0.5) for row in rows]
with open("submission.csv", "w") as file:
    print("PassengerId,Survived", file=file)
    for row, guess in zip(rows, guesses):
        print(row["PassengerId"], guess, sep=",", file=file)
print(len(seen), "groups,", sum(guesses), "of", len(guesses), "survive")
