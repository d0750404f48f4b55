"""The command line: one file a command, parsing and printing only."""
