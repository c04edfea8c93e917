"""The fault benchmark: real runs, each with one planted cause or none, and what the doctor makes of them.

python -m benchmarks.faults mask.attention-blind      plant one cause and show what the doctor says
python -m benchmarks.faults sample --to fault benchmark          a sample of faults and healthy runs
python -m benchmarks.faults full --to fault benchmark            all of them
python -m benchmarks.faults score fault benchmark                the scoreboard of what was run
"""
