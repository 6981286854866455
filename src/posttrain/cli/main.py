"""``posttrain VERB ...``: finds the verb, reads its flags, runs it, reports how it ended.

A verb is a frozen dataclass: its fields are the flags, its docstring is the help, `run` does the
work. Verbs are imported when they are asked for, so that the overview comes at once.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import ClassVar, Protocol

import posttrain
from posttrain.errors import ConfigError, PosttrainError, nearest

VERBS = {
    "quickstart": "warm-start a tiny model, train it with rewards, write a report; no download",
    "train": "train a recipe, a Python file or a saved run",
    "eval": "accuracy, pass@k and maj@k of a model, with intervals",
    "rollout": "sample and grade episodes, and write them to a file",
    "rescore": "grade stored episodes again with other rewards",
    "replay": "take a training step again from stored episodes",
    "doctor": "check templates, end tokens, rewards and parity before a run",
    "methods": "list the methods, or show the card of one",
    "map": "search the papers of the field, or list a reading route",
}
HELP = f"""\
posttrain {posttrain.__version__}: reinforcement learning of language models

usage: posttrain VERB [options]

{{verbs}}

  posttrain VERB --help     what a verb takes
  posttrain --version       the version

Any field of a run can be set where a verb takes a recipe:
  posttrain train RECIPE --models.policy.optimiser.lr 1e-5 --seed 3
"""


class Verb(Protocol):
    """A parsed command."""

    takes_overrides: ClassVar[bool]
    """Whether other options than its own are fields of the run."""

    def run(self, overrides: Sequence[str]) -> None:
        """Do it and print what came out."""
        ...


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status.

    0 is success, 2 a mistake of the user's that is said in a line, 130 an interruption. Anything
    else that is raised is a bug, and keeps its traceback.
    """
    words = list(sys.argv[1:] if args is None else args)
    if not words or words[0] in ("-h", "--help", "help"):
        listed = "\n".join(f"  {verb:<11} {text}" for verb, text in VERBS.items())
        print(HELP.format(verbs=listed), end="")
        return 0
    if words[0] in ("-V", "--version"):
        print(posttrain.__version__)
        return 0
    try:
        _run(words[0], words[1:])
    except PosttrainError as error:
        print(f"posttrain: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("\nStopped.", *getattr(stop, "__notes__", ()), file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has gone, as `| head` does
        sys.stderr.close()
        return 0
    return 0


def _run(verb: str, args: list[str]) -> None:
    if verb not in VERBS:
        raise ConfigError(
            f"there is no verb {verb!r}; there are {', '.join(VERBS)}.{nearest(verb, VERBS)}"
        )
    kind = _load(verb)
    import tyro  # slow enough that the overview goes without it

    own, overrides = split(args, kind) if kind.takes_overrides else (args, [])
    config = (tyro.conf.FlagCreatePairsOff,)
    tyro.cli(kind, args=own, prog=f"posttrain {verb}", config=config).run(overrides)


def _load(verb: str) -> type[Verb]:
    match verb:
        case "quickstart":
            from posttrain.cli.quickstart import Quickstart as Found
        case "train":
            from posttrain.cli.train import Train as Found
        case "eval":
            from posttrain.cli.evaluate import Evaluate as Found
        case "rollout":
            from posttrain.cli.rollout import Rollout as Found
        case "rescore":
            from posttrain.cli.rescore import Rescore as Found
        case "replay":
            from posttrain.cli.replay import Replay as Found
        case "doctor":
            from posttrain.cli.doctor import Doctor as Found
        case "methods":
            from posttrain.cli.methods import Methods as Found
        case _:
            from posttrain.cli.map import Map as Found
    return Found


def split(args: Sequence[str], kind: type) -> tuple[list[str], list[str]]:
    """The verb's own words, and the options that set fields of the run.

    Raises:
        ConfigError: an option that is neither, but is spelt like one of the verb's own.
    """
    names = {f.name for f in fields(kind)} | {"help"}
    own: list[str] = []
    overrides: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--") or name in names:
            own.append(word)
            continue
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
        if close and "." not in name and not _is_field(name):
            raise ConfigError(
                f"there is no option --{name}. Did you mean '--{close[0].replace('_', '-')}'?"
            )
        overrides.append(word)
        if not equals and rest:
            overrides.append(rest.pop(0))
    return own, overrides


def _is_field(name: str) -> bool:
    from posttrain.types.run import Run

    return name in {f.name for f in fields(Run)}
