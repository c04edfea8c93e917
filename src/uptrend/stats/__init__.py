"""Statistics of curves, fractions and comparisons over seeds (`scipy.special` inside). No torch."""
