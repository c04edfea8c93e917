"""The page around the tables of `benchmarks.verdicts`."""

PAGE = """# How often verdicts are wrong

{when}, {packages}, {minutes:.1f} minutes of one core: `python -m benchmarks.verdicts {experiments}`. {experiments:,} simulated experiments a cell; in brackets the 95% interval of each rate. How verdicts are made: [verdicts](../docs/guide/verdicts.md).

Simulated as experiments are run: 200 held-out tasks of differing difficulty that all runs share, a control at about 56%, each seed's true accuracy deviating by 2, 3 or 5 points (a quarter of that variance in common between the two arms of a seed), the noise of 200 answers on top, and an arm that suits some tasks more than others. The claim: the arm is higher, by 5 points at least; alpha .05.

**Which truth.** The interval over seeds must cover the mean difference over all seeds *on that experiment's 200 tasks*; effects are set there, experiment by experiment. The interval over seeds and tasks must cover the mean over all seeds and *all tasks of the kind*; its effect (5 points) is set there.

## Verdicts after all seeds

{first}

Alpha is .05; a directional claim errs on one side of a two-sided 95% interval, hence about 2.5%. Power is the chance to validate an effect of just 5 points: *planned* from the true deviation, *printed* with a verdict (the middle experiment's, from its own seeds), and *found*. It ends at 97.5%, for an interval that lies below 5 points invalidates.

## Other effects

{others}

## Looked at after every seed, and stopped when the confidence sequence has an answer

{early}

Both ways to err count here: by the sequence before the last seed, or by Student's interval after it. Fewer than 5 seeds decide nothing, by either.

## Eight hypotheses judged together

{together}

{experiments:,} families of eight, seeds deviating by 3 points, true effects of 10 points; Benjamini and Hochberg at 5%, through `judge.adjust`.

## The intervals beside it

{beside}

Coverage of the 95% intervals for the chance that a run of the arm beats a run of the control, and for the difference of interquartile means over three tasksets; runs are normal. The first supposes independent runs: too wide where the arms of a seed have something in common, and with 3 seeds, which have ten outcomes in all, coarse.

## Is it learning?

{learning}

The doctor's trend test on {experiments:,} curves, at 5%.

## Where the promise ends: an arm that sometimes collapses

{collapse}

One run of the arm in ten answers 1 task in 20, and the others are so much better that the true effect is 0; seeds else deviate by 3 points. Few seeds that happen to see no collapse can't know of it, and no interval over them can: look at the runs, and take more seeds where one collapsed.

## The table is the judge's

Of {checked} of these experiments given to `judge.judge` run by run and task by task, {wrong} got another verdict than the arrays above.
"""
