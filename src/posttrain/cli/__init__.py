"""The command line: load, call one function, print."""
