"""Statistics of curves, fractions and comparisons over seeds (`scipy.special` inside), and formatting. No torch."""
