"""BNPO, as TRL names it: the mean over all trained tokens of the batch.

    L = −1/Σ_i|o_i| Σ_i Σ_t min(r_it A_i, clamp(r_it, 1−ε_low, 1+ε_high) A_i)      r = π/π_old

In TRL the batch is the micro-batch, so that the result depends on how rows happen to be split. Here weights
always cover the whole update, and what is left is DAPO's weighting; the name is kept for recipes that say it.
"""

from uptrend.algo.losses.surrogate import Loss, mean_of_tokens, token_terms

BNPO = Loss(mean_of_tokens, token_terms)
