"""The command line: one file a verb, and arguments and printing."""
