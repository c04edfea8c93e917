"""The ward: real runs, each with one planted cause or none, and what the doctor makes of them.

python -m benchmarks.ward mask.attention-blind      plant one cause and show what the doctor says
python -m benchmarks.ward sample --to ward          a sample of faults and healthy runs
python -m benchmarks.ward full --to ward            all of them
python -m benchmarks.ward score ward                the scoreboard of what was run
"""
