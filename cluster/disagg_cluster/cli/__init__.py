"""The command line: one group of commands a file; each parses, calls one function and prints."""
