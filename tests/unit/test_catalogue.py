import re
from collections import Counter
from pathlib import Path

import pytest

from posttrain.errors import ConfigError
from posttrain.methods import METHODS, PAPER_ARGUMENTS
from posttrain.methods import map as papers_map
from posttrain.methods.cards import SECTIONS, card, docs, markdown, write_docs
from posttrain.methods.catalogue import ORDER, PARTS, all_methods, by_paper, entry
from posttrain.methods.fields import describe_part, meaning
from posttrain.parts.terms import KLPenalty
from posttrain.parts.trust import ClippedRatio

ROOT = Path(__file__).parents[2]
ARXIV = re.compile(r"\d{4}\.\d{5}")


def test_every_kind_is_complete():
    assert Counter(m.kind for m in all_methods()) == {"policy": 136, "reward": 89, "agent": 104}


def test_entries_are_well_formed():
    names = [m.name for m in all_methods()]
    assert len(set(names)) == len(names)
    places = {(p.direction, p.topic) for p in papers_map.papers()}
    for m in all_methods():
        assert re.fullmatch(r"[a-z0-9_]+", m.name), m.name
        assert m.title, m.name
        assert all(ARXIV.fullmatch(p) for p in m.papers), m.name
        assert (m.direction, m.topic) in places, m.name
        assert all(text and not text.endswith(".") for text in m.parts.values()), m.name


def test_what_is_built_is_in_the_catalogue():
    names = {m.name for m in all_methods()}
    assert set(METHODS) <= names
    assert set(PARTS) <= names
    assert not set(METHODS) & set(PARTS)
    assert set(PAPER_ARGUMENTS) <= set(METHODS)
    assert {m.name for m in all_methods() if m.state == "built"} == set(METHODS)
    assert entry("tis").part == "posttrain.parts.correction.TruncatedWeight"
    assert entry("tis").state == "part"
    assert entry("rpt").state == "not yet"
    assert ORDER == ("built", "part", "not yet")


def test_an_unknown_name_gets_the_nearest():
    assert entry("Dr-GRPO") is entry("dr_grpo")
    with pytest.raises(ConfigError, match="Did you mean 'grpo'"):
        entry("gprpo")


def test_built_entries_come_first():
    assert by_paper("2402.03300")[0].name == "grpo"
    assert by_paper("0000.00000") == ()


@pytest.mark.parametrize("name", METHODS)
def test_a_built_card_has_every_section_and_its_checks_exist(name):
    shown = card(name)
    assert tuple(shown.sections) == SECTIONS
    for test in re.findall(r"tests/\S+\.py", shown.sections["Checked"]):
        assert (ROOT / test).is_file(), test
    assert set(entry(name).papers) <= set(ARXIV.findall(shown.sections["Paper"]))
    text = markdown(shown)
    assert "```python\nfrom posttrain.methods import " + name in text
    for axis in ("### plan", "### term of policy"):
        assert axis in text


def test_a_card_shows_each_default_and_where_it_comes_from():
    text = markdown(card("grpo"))
    assert "- `beta` = `0.04`: Loss a nat, > 0." in text
    assert "  - `low` = `0.2`: Distance below 1, in (0, 1]. Source: PPO's 0.2." in text
    assert "- `group_size`: 64" in text
    assert "- `max_tokens`: needed" in markdown(card("dr_grpo"))
    assert card("grpo").models == ("policy", "ref")
    formula = card("grpo").sections["Formula"].splitlines()
    assert formula[0].startswith("A_i =")
    assert formula[1].startswith("loss =")


def test_cards_of_what_is_not_built():
    assert "Take the part `posttrain.parts.correction.MaskedWeight`" in markdown(card("icepop"))
    text = markdown(card("vineppo"))
    assert "`vineppo`: not yet." in text
    assert "- plan: branches at step ends" in text


def test_every_field_of_a_part_says_what_it_means():
    for name in METHODS:
        for axis, part in card(name).parts:
            if axis.startswith("probe"):
                continue
            stack = [part]
            while stack:
                described = stack.pop()
                stack += [inner for _, inner in described.inner]
                assert described.says, described.part
                for field in described.fields:
                    assert field.meaning, (described.part, field.name)


def test_meanings_are_read_from_under_the_fields():
    assert meaning(ClippedRatio, "high").startswith("Distance above 1, > 0.")
    assert meaning(ClippedRatio, "nothing") == ""
    described = describe_part(KLPenalty(beta=0.1))
    assert [name for name, _ in described.inner] == ["estimator", "aggregation"]


def test_generated_pages_are_up_to_date():
    """`python -m posttrain.methods.cards docs/methods` writes them."""
    folder = ROOT / "docs" / "methods"
    assert {p.name: p.read_text(encoding="utf-8") for p in folder.glob("*.md")} == docs()


def test_writing_the_pages_takes_out_stale_ones(tmp_path):
    (tmp_path / "gone.md").write_text("old", encoding="utf-8")
    write_docs(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"index.md", *(f"{n}.md" for n in METHODS)}


def test_the_map_holds_every_paper_once():
    papers = papers_map.papers()
    assert len(papers) == 732
    ids = [p.arxiv for p in papers if p.arxiv]
    assert len(set(ids)) == len(ids)
    assert all(ARXIV.fullmatch(i) for i in ids)
    assert {p.direction for p in papers} == set(papers_map.ROUTES)
    assert len({p.topic for p in papers if p.topic != "Surveys and benchmarks"}) == 29


def test_search_wants_every_word_and_puts_the_name_first():
    assert papers_map.search("grpo")[0].arxiv == "2402.03300"
    assert papers_map.search("GRPO")[0].preset == "grpo"
    found = papers_map.search("turn-level credit")
    assert found
    assert all("credit" in f"{p.title} {p.topic}".lower() for p in found)
    months = [p.month for p in papers_map.search("debate") if "debate" in p.title.lower()]
    assert months == sorted(months, reverse=True)
    assert papers_map.search("no such words at all") == ()
    assert len(papers_map.search("")) == 732
    assert papers_map.search("2503.20783")[0].short == "Dr. GRPO"


def test_a_paper_knows_the_preset_that_runs_it():
    by_id = {p.arxiv: p for p in papers_map.papers()}
    assert (by_id["2503.20783"].preset, by_id["2503.20783"].state) == ("dr_grpo", "built")
    assert (by_id["2410.01679"].preset, by_id["2410.01679"].state) == ("", "not yet")
    unlisted = next(p for p in papers_map.papers() if not p.arxiv)
    assert (unlisted.preset, unlisted.state, unlisted.methods) == ("", "not yet", ())


def test_reading_routes_lead_from_old_to_known_papers():
    for direction, ids in papers_map.ROUTES.items():
        route = papers_map.route(direction.lower())
        assert tuple(p.arxiv for p in route) == ids
        assert {p.direction for p in route} == {direction}
    with pytest.raises(ConfigError, match="Did you mean 'Agentic RL'"):
        papers_map.route("Agent RL")


def test_topics_of_a_direction():
    topics = papers_map.topics("opd")
    assert sum(map(len, topics.values())) == 104
    distillation = topics["On-policy distillation"]
    assert [p.month for p in distillation] == sorted((p.month for p in distillation), reverse=True)
