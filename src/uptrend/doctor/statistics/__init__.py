"""Statistics that hold on short, noisy, autocorrelated curves. numpy alone."""
