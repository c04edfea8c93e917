"""DAPO: every token of the update counts the same (Yu et al. 2025, arXiv 2503.14476, eq. 8).

    L = −1/Σ_i|o_i| Σ_i Σ_t min(r_it A_i, clamp(r_it, 1−ε_low, 1+ε_high) A_i)      r = π/π_old

A long rollout weighs by its length, so that long wrong answers are punished in full. The paper's other three
ideas are options of any loss: clip-higher (`clip_high = 0.28`), dynamic sampling (`sampling.resample`) and
overlong filtering (`mask_truncated`).
"""

from uptrend.algo.losses.surrogate import Loss, mean_of_tokens, token_terms

DAPO = Loss(mean_of_tokens, token_terms)
