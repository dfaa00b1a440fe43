"""The command line: one command a file; each parses, calls one function and prints."""
