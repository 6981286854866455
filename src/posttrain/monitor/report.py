"""A run as one HTML file: what it reached, its curves, episodes before and after, its settings.

Nothing is loaded from elsewhere and no script runs; the page says so to the browser, too, because
much of what it shows was written by a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from posttrain.monitor.charts import Point, curve, number
from posttrain.monitor.metrics_file import read_metrics
from posttrain.types.describe import Plain
from posttrain.types.episode import Group

CURVES = (
    ("eval/accuracy", "held-out accuracy, with its interval"),
    ("reward", "mean reward of the sampled episodes"),
    ("frac_reward_zero_std", "share of groups with equal rewards"),
    ("completions/mean_length", "sampled tokens an episode"),
    ("completions/clipped_ratio", "share of episodes cut by a limit"),
    ("entropy", "entropy of the policy, nats a token"),
    ("cross_entropy", "cross-entropy of the given answers, nats a token"),
    ("loss", "loss"),
    ("kl", "KL to the reference, nats a token"),
    ("grad_norm", "norm of the gradient"),
    ("sampling/sampling_logp_difference/mean", "sampler against trainer, nats a token"),
    ("step_time", "seconds a step"),
)
"""Metrics that are drawn, where a run has them, and their captions."""

UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of text around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a report shows; whatever is empty is left out."""

    title: str
    summary: Mapping[str, object]
    """Numbers by name, or ``{mean, low, high, n}``; NAME_before and NAME_after stand together."""
    statements: Sequence[str] = ()
    """What was measured and how, a sentence or two each."""
    metrics: Path | None = None
    """The run's metrics.jsonl."""
    before: Sequence[Group] = ()
    after: Sequence[Group] = ()
    """Episodes on the same tasks before and after training."""
    settings: Plain = None
    """The run, described."""
    examples: int = 8
    """Tasks shown, the first ones drawn."""


def write_report(path: str | Path, report: Report) -> Path:
    """Write the page; returns its path."""
    sections = (
        _figures(report.summary),
        _section("Curves", _curves(report.metrics), css="curves"),
        _section("The same problems before and after", _examples(report)),
        _section("What was measured, and how", _list(report.statements)),
        _section("Settings", _settings(report)),
    )
    path = Path(path)
    page = files("posttrain.monitor").joinpath("report.template.html").read_text("utf-8")
    page = page.replace("{{title}}", text(report.title))
    page = page.replace("{{body}}", "\n".join(s for s in sections if s))
    aside = path.with_suffix(".writing")
    aside.write_text(page, encoding="utf-8", errors="replace")
    aside.rename(path)
    return path


def text(said: object) -> str:
    """Text that is only text: escaped, control and direction characters made visible."""
    shown = str(said).encode("utf-8", "replace").decode("utf-8")
    return escape(UNSEEN.sub(lambda m: f"\\u{ord(m[0]):04x}", shown))


def _section(heading: str, inside: str, *, css: str = "") -> str:
    if not inside:
        return ""
    return f'<section class="{css}"><h2>{text(heading)}</h2>{inside}</section>'


# --- numbers ----------------------------------------------------------------------------------


def _figures(summary: Mapping[str, object]) -> str:
    """A card a pair of NAME_before and NAME_after, then the other numbers in a line."""
    cards, others = [], []
    for name, value in summary.items():
        stem = name.removesuffix("_before")
        if stem != name and f"{stem}_after" in summary:
            cards.append(_card(stem, value, summary[f"{stem}_after"]))
        elif not name.endswith("_after") or f"{name.removesuffix('_after')}_before" not in summary:
            others.append(f"<li>{_words(name)} <b>{_value(value)}</b></li>")
    line = f'<ul class="facts">{"".join(others)}</ul>' if others else ""
    return f'<section class="figures">{"".join(cards)}</section>{line}'


def _card(name: str, before: object, after: object) -> str:
    ends = [
        f"{_interval(value)} {when}"
        for value, when in ((before, "before"), (after, "after"))
        if _interval(value)
    ]
    below = f'<p class="small">{"<br>".join(ends)}</p>' if ends else ""
    return (
        f'<div class="card"><h3>{_words(name)}</h3><p class="big"><span class="was">'
        f'{_value(before)}</span> <span class="arrow">→</span> {_value(after)}</p>{below}</div>'
    )


def _words(name: str) -> str:
    return text(name.replace("_", " "))


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return _value(value.get("mean"))
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return text(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if 1e-3 <= value <= 1.0 else number(value)


def _interval(value: object) -> str:
    if not isinstance(value, Mapping) or "low" not in value:
        return ""
    count = f", n = {text(value['n'])}" if "n" in value else ""
    return f"[{_value(value['low'])}, {_value(value['high'])}]{count}"


# --- curves -----------------------------------------------------------------------------------


def _curves(metrics: Path | None) -> str:
    if metrics is None or not metrics.is_file():
        return ""
    rows = list(read_metrics(metrics))
    figures = []
    for name, caption in (*CURVES, *_named_rewards(rows)):
        points = list(_points(rows, name))
        drawn = curve(points, label=caption) if len({p.step for p in points}) > 1 else ""
        if drawn:
            last = number(points[-1].value)
            figures.append(
                f"<figure><figcaption>{text(caption)} <b>{last}</b></figcaption>{drawn}</figure>"
            )
    if not figures:
        return ""
    note = '<p class="small">By training step; the number is the last value.</p>'
    return f'{note}<div class="grid-of">{"".join(figures)}</div>'


def _named_rewards(rows: Sequence[Mapping[str, object]]) -> list[tuple[str, str]]:
    """Every named reward, where there are several."""
    names = sorted({k for r in rows for k in r if k.startswith("rewards/") and k.endswith("/mean")})
    return [(n, f"reward {n.split('/')[1]}") for n in names] if len(names) > 1 else []


def _points(rows: Sequence[Mapping[str, object]], name: str) -> Iterator[Point]:
    for row in rows:
        value, step = row.get(name), row.get("step")
        if isinstance(value, int | float) and isinstance(step, int | float):
            low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
            yield Point(
                step,
                value,
                low if isinstance(low, int | float) else None,
                high if isinstance(high, int | float) else None,
            )


# --- episodes ---------------------------------------------------------------------------------


def _examples(report: Report) -> str:
    """The first tasks; nothing is picked, so nothing flatters."""
    after = {g.task.id: g for g in report.after}
    both = bool(report.before) and bool(report.after)
    shown = list(report.before or report.after)[: report.examples]
    if not shown:
        return ""
    rows = []
    for group in shown:
        sides = [("before", group), ("after", after.get(group.task.id))] if both else [("", group)]
        cells = "".join(_episode(name, one) for name, one in sides)
        gold = group.task.gold
        told = "" if gold is None else f'<span class="gold">answer: {text(gold)}</span>'
        rows.append(
            f'<article><pre class="prompt">{text(_prompt(group))}</pre>{told}'
            f'<div class="sides">{cells}</div></article>'
        )
    total = len(report.before or report.after)
    return f'<p class="small">The first {len(shown)} of {total}, not picked.</p>{"".join(rows)}'


def _prompt(group: Group) -> str:
    prompt = group.task.prompt
    return prompt if isinstance(prompt, str) else "\n".join(m.content for m in prompt)


def _episode(name: str, group: Group | None) -> str:
    if group is None or not group.episodes:
        return f'<div class="side"><h4>{text(name)}</h4><p>not sampled</p></div>'
    total = group.total(0)
    reward = "not scorable" if total is None else f"reward {number(total)}"
    css = "none" if total is None else "good" if total > 0 else "bad"
    stop = group.episodes[0].stop
    ended = f", stopped: {stop}" if stop.truncated else ""
    return (
        f'<div class="side"><h4>{text(name)} <span class="reward {css}">{text(reward)}</span>'
        f"{text(ended)}</h4><pre>{text(group.episode_text(0))}</pre></div>"
    )


# --- words and settings -----------------------------------------------------------------------


def _list(statements: Sequence[str]) -> str:
    inside = "".join(f"<li>{text(s)}</li>" for s in statements)
    return f"<ul>{inside}</ul>" if inside else ""


def _settings(report: Report) -> str:
    rows = "".join(
        f"<tr><th>{text(at)}</th><td>{text(value)}</td></tr>" for at, value in flat(report.settings)
    )
    if not rows:
        return ""
    return f"<details><summary>Every field of the run</summary><table>{rows}</table></details>"


def flat(part: Plain, at: str = "") -> Iterator[tuple[str, str]]:
    """(place, value) of every leaf of a description; a part's name stands at the part itself."""
    if isinstance(part, dict):
        if "part" in part and at:
            yield at, str(part["part"])
        for key, value in part.items():
            if key != "part":
                yield from flat(value, f"{at}.{key}" if at else key)
    elif isinstance(part, list) and any(isinstance(v, dict | list) for v in part):
        for i, value in enumerate(part):
            yield from flat(value, f"{at}.{i}")
    elif part is not None:
        yield at, ", ".join(map(str, part)) if isinstance(part, list) else str(part)
