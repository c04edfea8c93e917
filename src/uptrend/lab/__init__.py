"""From a suspicion to a verdict that holds: hypotheses as files, arms × seeds, statistics, the journal."""
