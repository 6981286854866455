"""The command line: `main`, and one file a verb."""

from posttrain.cli.main import main

__all__ = ["main"]
