"""Sources: order from the cursor alone, files that name what is wrong, combinations."""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.hub import HFDataset
from posttrain.data.indexed import Concat, Mixture, Split
from posttrain.data.sources import JSONL, Generator, Parquet, Rows
from posttrain.errors import ConfigError, DataError, MissingExtraError
from posttrain.rewards.functions import SampleFunction
from posttrain.types.describe import describe
from posttrain.types.message import Task

RNG = np.random.default_rng(0)


def same(answer, gold):
    return answer == gold


def other(answer, gold):
    return answer != gold


def addition(rng):
    a, b = rng.integers(1, 10, 2)
    return {"prompt": f"{a}+{b}=", "answer": int(a + b)}


def ready(rng):
    return Task(id=str(rng.integers(1000)), prompt="x")


def nothing(rng):
    return 3


def rows(n: int, start: int = 0) -> tuple[dict, ...]:
    return tuple({"prompt": f"p{i}", "answer": i} for i in range(start, start + n))


def after(count: int) -> dict:
    return {"draws": pa.table({"count": [count]})}


def drawn(source, count: int, n: int) -> list:
    return [t.gold for t in source.draw(after(count), n, RNG)]


def test_passes_are_shuffled_anew_and_each_is_whole():
    source = Rows(rows(7), shuffle=3)
    order = drawn(source, 0, 21)
    passes = [order[0:7], order[7:14], order[14:21]]
    assert [sorted(p) for p in passes] == [list(range(7))] * 3
    assert passes[0] != passes[1] != passes[2]
    assert drawn(source, 0, 21) == order
    assert drawn(replace(source, shuffle=4), 0, 7) != passes[0]
    assert drawn(replace(source, shuffle=None), 0, 9) == [0, 1, 2, 3, 4, 5, 6, 0, 1]


@given(cuts=st.lists(st.integers(1, 9), max_size=6), seed=st.integers(0, 5))
def test_the_order_does_not_depend_on_how_it_is_cut(cuts, seed):
    source = Rows(rows(5), shuffle=seed)
    whole, count, pieces = drawn(source, 0, sum(cuts)), 0, []
    for n in cuts:
        pieces += drawn(source, count, n)
        count += n
    assert pieces == whole


def test_a_batch_larger_than_the_source_repeats_it():
    found = Counter(drawn(Rows(rows(3)), 0, 8))
    assert sorted(found.values()) == [2, 3, 3]


def test_the_first_draw_needs_no_state():
    assert len(Rows(rows(3)).draw({}, 2, RNG)) == 2


def test_an_empty_source_and_an_empty_prompt_are_refused():
    with pytest.raises(DataError, match="no rows"):
        Rows(()).draw({}, 8, RNG)
    with pytest.raises(DataError, match="row 2 of the rows given has an empty prompt"):
        Rows((*rows(2), {"prompt": ""})).draw({}, 1, RNG)
    with pytest.raises(DataError, match="8 tasks were asked of a source that has 0"):
        Concat(()).draw({}, 8, RNG)


def test_verifiers_and_columns_reach_the_tasks():
    grade = SampleFunction(same)
    source = Rows(({"q": "1+1", "a": 2, "hint": "h"},), verifiers={"same": grade}, prompt="q",
                  answer="a")  # fmt: skip
    assert source.verifiers == {"same": grade}
    (task,) = source.draw({}, 1, RNG)
    assert (task.prompt, task.gold, task.columns["hint"]) == ("1+1", 2, "h")
    assert source.envs == {}


def test_a_source_can_be_saved_compared_and_described():
    source = Rows(rows(3), verifiers={"same": SampleFunction(same)})
    source.size()
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert drawn(again, 0, 3) == drawn(source, 0, 3)
    assert "_memo" not in json.dumps(describe(source))


def test_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "p0", "answer": 0}\n\n{"prompt": "p1", "answer": 1, "k": null}\n')
    assert drawn(JSONL(str(path), shuffle=None), 0, 2) == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": "b', r"line 2 of .*a\.jsonl is no JSON.*may not be whole"),
        ('{"prompt": "a"}\nnot json\n', r"line 2 of .*a\.jsonl is no JSON \("),
        ('[{"prompt": "a"}]', "must be a JSON object, got list"),
        ("", r"a\.jsonl has no rows"),
    ],
)
def test_damaged_json_lines_are_named(tmp_path, text, message):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        JSONL(str(path)).size()


def test_a_missing_file_is_named(tmp_path):
    for source in (JSONL(str(tmp_path / "no.jsonl")), Parquet(str(tmp_path / "no.parquet"))):
        with pytest.raises(DataError, match=r"there is no file .*no\."):
            source.size()
    with pytest.raises(DataError, match="no Parquet file matches"):
        Parquet(str(tmp_path)).size()


def test_parquet_files_of_a_folder(tmp_path):
    pq.write_table(pa.Table.from_pylist(list(rows(3))), tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist(list(rows(2, 3))), tmp_path / "b.parquet")
    one = Parquet(str(tmp_path / "b.parquet"), shuffle=None)
    assert drawn(one, 0, 2) == [3, 4]
    for path in (tmp_path, tmp_path / "*.parquet"):
        assert drawn(Parquet(str(path), shuffle=None), 0, 5) == [0, 1, 2, 3, 4]


def test_rows_prepared_for_verl_come_from_parquet(tmp_path):
    row = {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": "2+2"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 0, "split": "train"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "train.parquet")
    (task,) = Parquet(str(tmp_path / "train.parquet")).draw({}, 1, RNG)
    assert task.gold == "4"
    assert task.prompt[0].content == "2+2"
    assert task.columns["extra_info"] == {"index": 0, "split": "train"}


def test_half_a_parquet_file_is_named(tmp_path):
    path = tmp_path / "half.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows(300))), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=rf"half\.parquet \({len(whole) // 2} bytes\) is damaged"):
        Parquet(str(path)).size()


def test_a_function_makes_the_same_task_for_the_same_draw():
    source = Generator(addition, seed=5)
    first = drawn(source, 0, 6)
    assert drawn(source, 2, 4) == first[2:]
    assert drawn(Generator(addition, seed=6), 0, 6) != first
    assert Generator(ready).draw({}, 1, RNG)[0].prompt == "x"
    with pytest.raises(ConfigError, match="top of a module"):
        Generator(lambda rng: {"prompt": "x"})
    with pytest.raises(DataError, match="nothing gave a int"):
        Generator(nothing).draw({}, 1, RNG)


def test_joined_sources_share_one_order_and_their_verifiers():
    grade = SampleFunction(same)
    one = Rows(rows(3), verifiers={"same": grade})
    joined = Concat((one, Rows(rows(2, 3))), shuffle=None)
    assert drawn(joined, 0, 6) == [0, 1, 2, 3, 4, 0]
    assert joined.verifiers == {"same": grade}
    clash = Concat((one, Rows(rows(2), verifiers={"same": SampleFunction(other)})))
    with pytest.raises(ConfigError, match="verifier 'same'"):
        _ = clash.verifiers


def test_a_split_keeps_equal_problems_on_one_side():
    source = Rows((*rows(40), *rows(40)), shuffle=None)
    train, held = Split(source=source, num=7), Split(source=source, num=7, side="held_out")
    assert (train.size(), held.size()) == (66, 14)
    sides = [{t.gold for t in s.draw({}, s.size(), RNG)} for s in (train, held)]
    assert len(sides[1]) == 7
    assert sides[0].isdisjoint(sides[1])
    assert sides[0] | sides[1] == set(range(40))
    again = Split(source=Rows((*rows(40),)), num=7, side="held_out")
    assert {t.gold for t in again.draw({}, 7, RNG)} == sides[1]
    assert Split(source=source, share=0.25, side="held_out").size() == 20
    with pytest.raises(DataError, match="holds out 40 problems of a source with 40"):
        Split(source=source, num=40).size()
    with pytest.raises(ConfigError, match=r"share in \(0, 1\)"):
        Split(source=source, share=1.0)


def test_a_mixture_keeps_its_shares_and_each_sources_own_order():
    one, two = Rows(rows(7), shuffle=None), Rows(rows(500, 100), shuffle=None)
    mixed = Mixture((one, two), weights=(1.0, 3.0))
    order = drawn(mixed, 0, 1000)
    assert sum(g < 100 for g in order) == 250
    assert [g for g in order if g < 100][:9] == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert [g for g in order if g >= 100][:5] == [100, 101, 102, 103, 104]
    assert sum(g < 100 for g in drawn(mixed, 1000, 1000)) == 250


@given(start=st.integers(0, 2500), n=st.integers(0, 40))
def test_a_mixture_goes_on_from_any_place(start, n):
    mixed = Mixture((Rows(rows(3)), Rows(rows(4, 10)), Generator(addition)), (0.2, 0.5, 0.3))
    whole = drawn(mixed, start, n + 3)
    assert drawn(mixed, start + 3, n) == whole[3:]


def test_a_mixture_needs_a_weight_a_source():
    with pytest.raises(ConfigError, match="one number > 0 a source"):
        Mixture((Rows(rows(3)),), weights=(1.0, 2.0))


def test_a_hub_data_set(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows(4)))
    source = HFDataset(str(tmp_path), shuffle=None)
    assert drawn(source, 0, 4) == [0, 1, 2, 3]
    with pytest.raises(DataError, match="cannot be read"):
        HFDataset(str(tmp_path), split="tests").size()


def test_a_hub_data_set_without_the_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"posttrain\[datasets\]"):
        HFDataset("some/data").size()
