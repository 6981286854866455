"""The loop: steps, lag, resume, stored steps that can be computed again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.loop_kit import Heard, loop_of, master, run_of

from posttrain.data.store import read_groups
from posttrain.errors import CheckpointError
from posttrain.methods import METHODS
from posttrain.trainers import checkpoint
from posttrain.trainers.batch import build_rows, collate, count, term_sets
from posttrain.types.events import StepFinished, Warned
from posttrain.types.models import Frozen
from posttrain.types.run import Checkpoints, Lag
from posttrain.types.term import ModelOut

DR_GRPO = METHODS["dr_grpo"](max_tokens=4, group_size=3)


def same(a, b):
    return all(np.array_equal(a[n], b[n]) for n in a)


def test_a_run_learns_stores_and_logs_every_step(tmp_path):
    heard = Heard()
    loop = loop_of(run_of(DR_GRPO), tmp_path, emit=heard)
    before = master(loop)
    position = loop.fit(resume=False)
    assert position.step == 3
    assert not same(before, master(loop))
    steps = heard.of(StepFinished)
    assert [e.step for e in steps] == [1, 2, 3]
    for name in ("loss", "reward", "grad_norm", "entropy", "completions/mean_length", "num_tokens"):
        assert np.isfinite(steps[0].metrics[name]), name
    assert steps[0].metrics["sampling/sampling_logp_difference/max"] < 1e-4
    stored = [read_groups(p) for p in sorted((tmp_path / "episodes").iterdir())]
    assert [g.task.id for groups in stored for g in groups] == ["a", "b", "c", "d", "e", "a"]
    names = [p.name for p in checkpoint.listed(tmp_path / "checkpoints")]
    assert names == ["step_000002", "step_000003"]


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    whole = loop_of(run_of(DR_GRPO, steps=5), tmp_path / "whole")
    whole.fit(resume=False)
    (tmp_path / "parts").mkdir()

    class KilledError(Exception):
        pass

    def die(event):
        if isinstance(event, StepFinished) and event.step == 3:
            raise KilledError

    with pytest.raises(KilledError):
        loop_of(run_of(DR_GRPO, steps=5), tmp_path / "parts", emit=die).fit(resume=False)
    heard = Heard()
    again = loop_of(run_of(DR_GRPO, steps=5), tmp_path / "parts", emit=heard)
    again.fit(resume=True)
    assert [e.step for e in heard.of(StepFinished)] == [3, 4, 5]
    assert same(master(whole), master(again))
    for step in (3, 5):
        a, b = (read_groups(tmp_path / w / "episodes" / f"step_{step:06d}.parquet")
                for w in ("whole", "parts"))  # fmt: skip
        assert [g.task.id for g in a] == [g.task.id for g in b]
        assert np.array_equal(a[0].segments[1].ids, b[0].segments[1].ids)


def test_under_a_lag_tokens_are_as_old_as_it_says_and_pending_batches_survive_a_kill(tmp_path):
    run = run_of(DR_GRPO, steps=5, schedule=Lag(2))
    whole = loop_of(run, tmp_path / "whole")
    whole.fit(resume=False)
    ages = []
    for step in range(1, 6):
        groups = read_groups(tmp_path / "whole" / "episodes" / f"step_{step:06d}.parquet")
        versions = {int(v) for g in groups for s in g.segments for v in s.version[s.action_mask]}
        (version,) = versions
        ages.append(step - 1 - version)
    assert ages == [0, 1, 2, 2, 2]

    def die(event):
        if isinstance(event, StepFinished) and event.step == 3:
            raise KeyboardInterrupt

    (tmp_path / "parts").mkdir()
    with pytest.raises(KeyboardInterrupt):
        loop_of(run, tmp_path / "parts", emit=die).fit(resume=False)
    saved = checkpoint.read(tmp_path / "parts/checkpoints/step_000002", run_hash="x" * 0 or
                            loop_of(run, tmp_path).run_hash)  # fmt: skip
    assert len(saved.pending) == 4  # two batches of two groups on their way
    again = loop_of(run, tmp_path / "parts")
    again.fit(resume=True)
    assert same(master(whole), master(again))


def test_zero_lag_equals_sync(tmp_path):
    a = loop_of(run_of(DR_GRPO), tmp_path / "a")
    b = loop_of(run_of(DR_GRPO, schedule=Lag(0)), tmp_path / "b")
    a.fit(resume=False)
    b.fit(resume=False)
    assert same(master(a), master(b))


def test_a_damaged_checkpoint_is_passed_over_and_another_runs_is_refused(tmp_path):
    run = run_of(DR_GRPO, steps=4)
    loop_of(run, tmp_path).fit(resume=False)
    newest = tmp_path / "checkpoints" / "step_000004"
    learner = newest / "state" / "learner.pt"
    learner.write_bytes(learner.read_bytes()[:-7])
    heard = Heard()
    again = loop_of(run, tmp_path, emit=heard)
    again.fit(resume=True)
    assert [e.step for e in heard.of(StepFinished)] == [3, 4]
    assert any("step_000004" in w.text and "damaged" in w.text for w in heard.of(Warned))
    with pytest.raises(CheckpointError, match="another run"):
        loop_of(run_of(DR_GRPO, steps=4, seed=1), tmp_path).fit(resume=True)


def test_latest_is_the_largest_number(tmp_path):
    for name in ("step_9", "step_10", "step_100"):
        (tmp_path / name / "state").mkdir(parents=True)
        (tmp_path / name / "state" / "manifest.json").write_text("{}")
    assert checkpoint.latest(tmp_path, warn=print).name == "step_100"


def test_a_full_disk_stops_with_a_clear_error_and_keeps_older_checkpoints(tmp_path, monkeypatch):
    run = run_of(DR_GRPO, steps=4)
    saves = []

    def no_space(*args, **kwargs):
        saves.append(args)
        if len(saves) > 1:
            raise OSError(28, "No space left on device")
        return original(*args, **kwargs)

    original = torch.save
    monkeypatch.setattr(checkpoint.torch, "save", no_space)
    monkeypatch.setattr(checkpoint.pq, "write_table", checkpoint.pq.write_table)
    with pytest.raises(CheckpointError, match="No space left"):
        loop_of(run, tmp_path).fit(resume=False)
    assert not list((tmp_path / "checkpoints").glob(".writing*"))


@pytest.mark.parametrize("name", ["reinforce", "rloo", "grpo", "dr_grpo"])
def test_losses_weights_and_slopes_can_be_computed_from_what_is_stored(  # noqa: C901
    tmp_path, name
):
    """Without the model: rows, counts and terms from the Parquet file and the run alone."""
    made = {
        "dr_grpo": lambda: METHODS["dr_grpo"](max_tokens=4, group_size=3),
        "rloo": lambda: METHODS["rloo"](group_size=3),
        "grpo": lambda: METHODS["grpo"](group_size=3),
        "reinforce": lambda: METHODS["reinforce"](group_size=3),
    }[name]()
    models = dict(run_of(DR_GRPO).models)
    for probe in made.probes:
        if probe.model != "policy":
            models[probe.model] = Frozen(of="policy", compute="float32")
    loop = loop_of(run_of(made, steps=1, models=models), tmp_path)
    seen = []
    learner = loop.on.learner
    original = type(learner).forward_backward

    def watch(model, batch, terms, counts, stats, **more):
        out = learner.forward(model, batch)
        own = out.policy_logprobs.detach().requires_grad_()
        filled = dict.fromkeys(more["current"], own.detach())
        batch_now = collate_like(batch, filled)
        now = ModelOut(policy_logprobs=own, entropy=out.entropy.detach())
        for term, c in zip(terms, counts, strict=True):
            result = term(batch_now, now, c, None)
            (slope,) = torch.autograd.grad(result.loss, own)
            seen.append((batch, result.losses.detach(), result.weights, slope))
        return original(learner, model, batch, terms, counts, stats, **more)

    learner.forward_backward = watch
    loop.fit(resume=False)
    expected = {}
    for batch, losses, weights, slope in seen:
        for b, t in torch.nonzero(batch.loss_mask).tolist():
            key = (int(batch.segment[b, t]), t)
            part = (float(losses[b, t]), float(weights[b, t]), float(slope[b, t]))
            expected.setdefault(key, []).append(part)

    groups = read_groups(tmp_path / "episodes" / "step_000001.parquet")
    found = {}
    for terms in term_sets(made.terms["policy"]):
        rows = [r for r in build_rows(groups, terms, model="policy") if r.num_trained]
        batch = collate(rows)
        own = torch.where(batch.loss_mask, batch.column("policy_logprobs"), 0.0).requires_grad_()
        for term in terms:
            result = term(batch, ModelOut(policy_logprobs=own), count(rows), None)
            (slope,) = torch.autograd.grad(result.loss, own)
            for b, t in torch.nonzero(batch.loss_mask).tolist():
                key = (int(batch.segment[b, t]), t)
                part = (float(result.losses[b, t].detach()), float(result.weights[b, t]),
                        float(slope[b, t]))  # fmt: skip
                found.setdefault(key, []).append(part)
    assert expected
    assert found.keys() == expected.keys()
    for key in expected:
        np.testing.assert_allclose(sorted(found[key]), sorted(expected[key]), rtol=1e-5, atol=1e-6)


def collate_like(batch, filled):
    from dataclasses import replace

    return replace(batch, columns={**batch.columns, **filled})


def test_keep_best_outlives_newer_checkpoints(tmp_path):
    run = run_of(DR_GRPO, steps=4, checkpoints=Checkpoints(every=1, keep_last=1, keep_best="loss"))
    heard = Heard()
    loop = loop_of(run, tmp_path, emit=heard)
    loop.fit(resume=False)
    losses = {e.step: e.metrics["loss"] for e in heard.of(StepFinished)}
    best = max(losses, key=lambda s: losses[s])
    kept = {int(p.name.removeprefix("step_")) for p in checkpoint.listed(tmp_path / "checkpoints")}
    assert kept == {best, 4}
