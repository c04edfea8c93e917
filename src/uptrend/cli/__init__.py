"""The command line: one file a verb, and the only place where rooms are joined."""
