"""How verdicts are computed: seeds are the unit of inference; numpy and the doctor's distributions, nothing else."""
