"""The report page: what is on it, and that text of a model stays text."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.unit.group_fixture import group

from posttrain.monitor.charts import Point, curve, number, ticks
from posttrain.monitor.report import Report, flat, text, write_report
from posttrain.types.message import Task

HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)> & {{body}} \u202eabc \x1b[31m"
)


class Page(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


def parsed(path):
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def said(name, answer, reward):
    made = group([reward])
    segments = tuple(replace(s, text=answer, char_ends=s.ids * 0) for s in made.segments)
    return replace(made, task=Task(id=name, prompt=f"problem {name}", gold="5"), segments=segments)


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": i, "reward": i / 10, "entropy": None if i == 2 else 1.0} for i in range(1, 6)]
    rows += [
        {"step": 2, "eval/accuracy": 0.25, "eval/accuracy_low": 0.2, "eval/accuracy_high": 0.31},
        {"step": 5, "eval/accuracy": 0.75, "eval/accuracy_low": 0.7, "eval/accuracy_high": 0.81},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_page_shows_numbers_curves_episodes_and_settings(tmp_path, metrics):
    report = Report(
        title="a run",
        summary={
            "accuracy_before": {"mean": 0.25, "low": 0.21, "high": 0.29, "n": 512},
            "accuracy_after": {"mean": 0.875, "low": 0.84, "high": 0.9, "n": 512},
            "seconds": 151.7,
        },
        statements=["Accuracy is a share."],
        metrics=metrics,
        before=[said(n, f"{n} was", 0.0) for n in "abc"],
        after=[said(n, f"{n} is", 1.0) for n in "cab"],
        settings={"part": "Run", "seed": 3, "phases": [{"part": "Phase", "name": "rl"}]},
        examples=2,
    )
    page = parsed(write_report(tmp_path / "report.html", report))
    words = " ".join(" ".join(page.words).split())
    for expected in ("0.250 → 0.875", "[0.210, 0.290], n = 512 before", "seconds 152",
                     "held-out accuracy, with its interval 0.75", "Accuracy is a share.",
                     "The first 2 of 3, not picked.", "a was", "a is", "b is", "phases.0.name",
                     "answer: 5", "reward 1"):  # fmt: skip
        assert expected in words
    assert "c is" not in words
    assert page.tags.count("svg") == 3  # reward, entropy, accuracy
    assert page.tags.count("polygon") == 1  # the interval of the accuracy


def test_nothing_is_loaded_and_hostile_text_stays_text(tmp_path, metrics):
    report = Report(
        title=HOSTILE,
        summary={HOSTILE: HOSTILE},
        statements=[HOSTILE],
        metrics=metrics,
        before=[said("x", HOSTILE, 0.0)],
        settings={HOSTILE: HOSTILE},
    )
    path = write_report(tmp_path / "report.html", report)
    page = parsed(path)
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert not [a for a, _ in page.attributes if a.startswith("on") or a in ("src", "href")]
    whole = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in whole
    assert "\u202e" not in whole
    assert "\x1b" not in whole
    assert "url(" not in whole
    assert page.words.count("\\u202e") == 0  # shown inside the text, not alone
    assert "\\u202eabc" in whole


def test_lone_surrogates_can_be_written():
    assert text("a\ud800b") == "a?b"


def test_an_empty_report_is_a_page(tmp_path):
    path = write_report(tmp_path / "r.html", Report(title="t", summary={}))
    assert "h2" not in parsed(path).tags


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0.0, 1.0, 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.13, 0.58, 5, [0.2, 0.4]),
        (1, 30, 5, [10, 20, 30]),
        (-3.0, 3.0, 5, [-2.0, 0.0, 2.0]),
    ],
)
def test_ticks_are_round(low, high, most, expected):
    assert ticks(low, high, most=most) == pytest.approx(expected)


def test_a_curve_is_where_its_values_are():
    # 360 x 200 with margins 46, 14, 14, 26: the box is 300 x 160. Values 0 and 1 and 8% room:
    # y runs from 0 (at 174) to 1.08 (at 14), so 1 is at 174 - 160 / 1.08 = 25.9
    drawn = curve([Point(1, 0.0), Point(3, 1.0)], label="x")
    assert '<polyline class="line" points="46,174 346,25.9"/>' in drawn
    assert curve([Point(1, float("nan"))], label="x") == ""
    flat_line = curve([Point(1, 2.0), Point(2, 2.0)], label="x")
    assert "nan" not in flat_line


def test_numbers_are_short():
    assert [number(v) for v in (0, 0.12345, 12.345, 1234.5, 0.000012)] == [
        "0", "0.123", "12.3", "1,234", "1.2e-05"]  # fmt: skip


def test_a_description_is_flat():
    tree = {"part": "Run", "seed": 1, "stop": ["a", "b"], "of": {"part": "X", "y": None}}
    assert list(flat(tree)) == [("seed", "1"), ("stop", "a, b"), ("of", "X")]
