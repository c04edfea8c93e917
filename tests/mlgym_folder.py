"""A folder of tasks in MLGym's format: one small task, with answers among its data."""

import textwrap
from pathlib import Path


def write_folder(root: Path, kind: str = "CSVSubmissionTasks", extra: str = "") -> str:
    """Write a MLGym checkout with one task, whose answers lie among its data."""
    for place in ("configs/tasks", "configs/datasets", "data/toy/data"):
        (root / place).mkdir(parents=True)
    (root / "configs/datasets/toy.yaml").write_text(
        "name: toy\ndescription: Twenty rows.\ndata_path: data/toy/data\nis_local: true\n"
    )
    rows = [f"{n},{n % 2}" for n in range(20)]
    (root / "data/toy/data/answers.csv").write_text("\n".join(["id,y", *rows]) + "\n")
    (root / "data/toy/data/test.csv").write_text("\n".join(["id", *map(str, range(20))]) + "\n")
    (root / "data/toy/baseline.py").write_text(
        "open('submission.csv', 'w').write('id,y\\n' + ''.join(f'{n},0\\n' for n in range(20)))\n"
    )
    (root / "data/toy/evaluate.py").write_text(
        textwrap.dedent("""
        import argparse, csv, json
        parser = argparse.ArgumentParser()
        parser.add_argument("--submission_file")
        read = lambda path: list(csv.DictReader(open(path)))
        truth = read("/home/agent/workspace/data/answers.csv")
        given = {row["id"]: row["y"] for row in read(parser.parse_args().submission_file)}
        assert len(given) == len(truth), f"{len(given)} rows, not {len(truth)}"
        print(json.dumps({"accuracy": sum(given[row["id"]] == row["y"] for row in truth) / len(truth)}))
        """)
    )
    (root / "configs/tasks/toy.yaml").write_text(
        "id: toy\nname: Toy\ndescription: |-\n  Guess y. {dataset_docs}\ndataset_configs: [datasets/toy.yaml]\n"
        f"task_entrypoint: {kind}\ntraining_timeout: 20\nstarter_code: [data/toy/baseline.py, data/toy/evaluate.py]\n"
        "baseline_paths: [baseline.py]\nbaseline_scores:\n  - Accuracy: 0.5\nevaluation_paths: [evaluate.py]\n"
        f"uptrend:\n  answers: data/answers.csv\n  key: id\n{extra}"
    )
    return str(root)
