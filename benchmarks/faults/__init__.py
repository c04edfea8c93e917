"""The fault benchmark: real runs, each with one planted cause or none, and the doctor's findings on
them.

python -m benchmarks.faults mask.attention-blind           plant one cause and show what the doctor
says python -m benchmarks.faults sample --to .faults/sample     a sample of faults and healthy runs
python -m benchmarks.faults full --to .faults/full         all of them python -m benchmarks.faults
score .faults/full             the scoreboard of what was run
"""
