"""GRPO: the mean over rollouts of each rollout's token mean (Shao et al. 2024, arXiv 2402.03300, eq. 3).

    L = −1/N Σ_i 1/|o_i| Σ_t min(r_it A_i, clamp(r_it, 1−ε_low, 1+ε_high) A_i)      r = π/π_old

Every rollout counts the same, however long: a token of a short answer weighs more than one of a long answer,
so among wrong answers the long ones are punished least. N counts every rollout given, also those with
nothing to train: leaving some out must not make the rest count for more.
"""

from uptrend.algo.losses.surrogate import Loss, mean_of_rollouts, token_terms

GRPO = Loss(mean_of_rollouts, token_terms)
