"""Any field of a run from the command line: ``--models.policy.optimiser.lr 1e-5``.

A key walks the tree: fields of dataclasses, keys of mappings, indexes of tuples. A value is read
by the field's type. Where a part stands, its class name replaces it, and further keys set the
fields of the new one, the rest of which have their defaults::

    --phases.0.method.terms.policy.0.trust Unconstrained
    --models.ref Frozen --models.ref.of policy          (a new key of a mapping)
    --sinks.0 TensorBoard                               (one more at the end of a tuple)
    --phases.0.evaluation none                          (take out what may be missing)

All changes to one object are made at once, so that two that only make sense together pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, get_args

from posttrain.errors import ConfigError, nearest
from posttrain.recipes.values import NONE, hints_of, kind_named, kinds_of, optional, parse
from posttrain.types.run import Run

OTHER_WORDS: Mapping[str, str] = {
    "learning_rate": "lr",
    "batch_size": "groups_per_step",
    "num_generations": "size",
    "group_size": "size",
    "max_steps": "n",
    "max_completion_length": "max_tokens",
}
"""Names that other libraries use, and ours."""


@dataclass(slots=True)
class _Node:
    """What was written about one place of the tree."""

    text: str | None = None
    below: dict[str, _Node] = field(default_factory=dict)


def override(run: Run, words: Sequence[str]) -> Run:
    """The run with fields set as in ``["--seed", "3", "--decode.top_p=0.9"]``.

    Raises:
        ConfigError: there is no such field, or the value is not one it takes.
    """
    root = _Node()
    for key, text in pairs(words):
        node = root
        for name in key.split("."):
            node = node.below.setdefault(name, _Node())
        if node.text is not None:
            raise ConfigError(f"--{key} is given twice: {node.text!r} and {text!r}.")
        node.text = text
    changed = _changed(run, root, Run, at="--", top=run)
    if not isinstance(changed, Run):
        raise ConfigError(f"options must start with --, got {' '.join(words)!r}.")
    return changed


def pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """(key, value) of options written as ``--key value`` or ``--key=value``.

    Raises:
        ConfigError: a value without its option, or an option without its value.
    """
    found = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not key:
            raise ConfigError(f"expected --key value, got {word!r}, which no option takes.")
        if not equals:
            if not rest:
                raise ConfigError(f"--{key} needs a value after it.")
            text = rest.pop(0)
        found.append((key, text))
    return found


def merged(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """Both lists of options; a new one takes the place of old ones at its key and below it."""
    later = pairs(new)
    kept = [
        (key, text)
        for key, text in pairs(old)
        if not any(key == k or key.startswith(f"{k}.") for k, _ in later)
    ]
    return tuple(word for key, text in (*kept, *later) for word in (f"--{key}", text))


def _changed(value: object, node: _Node, hint: object, *, at: str, top: Run) -> object:
    """The value with what was written about it and below it."""
    if node.text is not None:
        if not kinds_of(hint):
            if node.below:
                raise ConfigError(f"{at} is a plain value; it has no {sorted(node.below)}.")
            return parse(node.text, hint, at=at, current=value)
        if node.text.lower() in NONE and optional(hint) and not node.below:
            return None
        return _built(kind_named(node.text, hint, at=at), node.below, at=at, top=top)
    if is_dataclass(value) and not isinstance(value, type):
        known = {f.name: f for f in fields(value) if f.init}
        hints = hints_of(type(value))
        changes = {}
        for key, below in node.below.items():
            name = _known(key, known, at=at, what=type(value).__name__, top=top)
            now = getattr(value, name)
            changes[name] = _changed(now, below, hints.get(name, Any), at=_join(at, name), top=top)
        return replace(value, **changes)
    if isinstance(value, Mapping):
        return _changed_mapping(value, node, hint, at=at, top=top)
    if isinstance(value, tuple):
        return _changed_tuple(value, node, hint, at=at, top=top)
    kinds = ", ".join(kinds_of(hint))
    remedy = f" Put a part there first: {at} one of {kinds}." if kinds else ""
    raise ConfigError(f"{at} is {value!r}, which has no {sorted(node.below)}.{remedy}")


def _changed_mapping(
    value: Mapping[Any, Any], node: _Node, hint: object, *, at: str, top: Run
) -> dict[Any, Any]:
    inner = (*get_args(hint), Any, Any)[1]
    changed = dict(value)
    for key, below in node.below.items():
        if key not in changed and below.text is None:
            raise ConfigError(
                f"{at} has no {key!r}; there are {sorted(changed)}.{nearest(key, changed)} A new "
                f"one begins with its class: {_join(at, key)} CLASS."
            )
        changed[key] = _changed(changed.get(key), below, inner, at=_join(at, key), top=top)
    return changed


def _changed_tuple(
    value: tuple[Any, ...], node: _Node, hint: object, *, at: str, top: Run
) -> tuple[Any, ...]:
    members = get_args(hint) or (Any, ...)
    changed = list(value)
    for key, below in sorted(node.below.items(), key=lambda item: item[0].zfill(9)):
        index = int(key) if key.isdecimal() else -1
        if not 0 <= index < len(changed) + (below.text is not None):
            raise ConfigError(
                f"{at} has the places 0 to {len(changed) - 1}, got {key!r}. One more goes to "
                f"{_join(at, str(len(changed)))}, with its value."
            )
        inner = members[0] if members[-1] is ... else members[min(index, len(members) - 1)]
        if index == len(changed):
            changed.append(None)
        changed[index] = _changed(changed[index], below, inner, at=_join(at, key), top=top)
    return tuple(changed)


def _built(kind: type, below: Mapping[str, _Node], *, at: str, top: Run) -> object:
    """A new part of a class: fields as written, the others by default."""
    known = {f.name: f for f in fields(kind) if f.init}
    hints = hints_of(kind)
    given = {}
    for key, node in below.items():
        name = _known(key, known, at=at, what=kind.__name__, top=top)
        now = _default(known[name])
        given[name] = _changed(now, node, hints.get(name, Any), at=_join(at, name), top=top)
    for name, declared in known.items():
        if name not in given and declared.default is declared.default_factory is MISSING:
            raise ConfigError(f"{kind.__name__} needs {name}: add {_join(at, name)} VALUE.")
    return kind(**given)


def _default(declared: Field[Any]) -> object:
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return None if declared.default is MISSING else declared.default


def _known(key: str, known: Mapping[str, object], *, at: str, what: str, top: Run) -> str:
    """The field's name.

    Raises:
        ConfigError: there is none; names the nearest one here, or elsewhere in the run.
    """
    name = key.replace("-", "_")
    if name in known:
        return name
    raise ConfigError(
        f"{_join(at, key)}: {what} has no field {key!r}; it has {', '.join(known)}."
        f"{_meant(name, known, at, top)}"
    )


def _meant(name: str, known: Mapping[str, object], at: str, top: Run) -> str:
    """The option of the nearest name: here, elsewhere in the run, or as other libraries say it."""
    places: dict[str, str] = {}
    for path in (*(_join(at, here) for here in known), *(f"--{p}" for p in _paths(top, ""))):
        places.setdefault(path.rpartition(".")[2].removeprefix("--"), path)
    for word, ours in OTHER_WORDS.items():
        if ours in places:
            places.setdefault(word, places[ours])
    guess = nearest(name, places)
    if not guess:
        return ""
    word = guess.split("'")[1]
    return f"{guess} That is {places[word]}."


def _paths(value: object, at: str) -> Iterator[str]:
    inside: list[tuple[str, object]] = []
    if is_dataclass(value) and not isinstance(value, type):
        inside = [(f.name, getattr(value, f.name)) for f in fields(value) if f.init]
    elif isinstance(value, Mapping):
        inside = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, tuple):
        inside = [(str(i), inner) for i, inner in enumerate(value)]
    for name, inner in inside:
        path = f"{at}.{name}" if at else name
        yield path
        yield from _paths(inner, path)


def _join(at: str, name: str) -> str:
    return f"--{name}" if at == "--" else f"{at}.{name}"
