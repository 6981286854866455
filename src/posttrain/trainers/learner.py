"""The local learner: named models in one process, fp32 master weights, gradients by term.

The module computes in ``compute`` precision; gradients of every micro-batch are added in the
master's precision (float32, or float64 with float64), so accumulation loses nothing. Dropout is off
throughout: a ratio compares the same network with itself.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.data.precision import cast_weights
from posttrain.errors import ConfigError, InternalError, NumericsError
from posttrain.rollout.fingerprint import fingerprint
from posttrain.trainers.batch import on_device
from posttrain.trainers.forward import Layout, Split, split_model, split_scalar, token_outputs
from posttrain.trainers.modules import checkpointed, merged, no_dropout, scalar_head, with_adapter
from posttrain.trainers.scoring import score_items
from posttrain.types.engine import Capability, ScoreItem, Tensors
from posttrain.types.models import ModelSpec, MovingAverage, Optimiser, Trained
from posttrain.types.term import (
    Counts,
    Forward,
    GradientRule,
    ModelOut,
    Needs,
    Stats,
    Tally,
    Term,
    TermOut,
    TokenBatch,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(slots=True)
class Held:
    """One model with what training it needs."""

    spec: ModelSpec
    module: nn.Module
    parts: Split
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    """Trainable parameters of the module, in compute precision."""
    master: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """By slice, by parameter, in master precision."""
    optimiser: torch.optim.Optimizer | None = None
    rule: Optimiser | None = None
    updates: int = 0
    """Updates by the present optimiser: the clock of its learning-rate schedule."""
    version: int = 0


class LocalLearner:
    """Learner of one process; see ``types.engine.Learner``."""

    capabilities: frozenset[Capability] = frozenset({"topk", "entropy", "hidden", "value"})

    def __init__(self, *, device: str = "cpu", layout: Layout = "right") -> None:
        self.device = torch.device(device)
        self.layout: Layout = layout
        self.models: dict[str, Held] = {}

    def add(self, name: str, spec: ModelSpec, module: nn.Module) -> None:
        """Hold a model. ``module`` comes in master precision; the learner owns it from here on.

        Raises:
            ConfigError: a trained model has no trainable parameter.
        """
        no_dropout(module)
        compute = DTYPES[getattr(spec, "compute", "float32")]
        if not isinstance(spec, Trained):
            module.requires_grad_(requires_grad=False).to(self.device)
            cast_weights(module, compute)
            self.models[name] = Held(spec, module, split_model(module))
            return
        if spec.lora is not None:
            module = with_adapter(module, spec.lora, seed=spec.init_seed)
        if spec.gradient_checkpointing:
            checkpointed(module)
        scalar = scalar_head(module) if spec.head == "scalar" else None
        module.to(self.device)
        held_back = torch.float64 if compute == torch.float64 else torch.float32
        trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ConfigError(
                f"model {name!r} has no trainable parameter, so nothing would be learned. "
                "Unfreeze some, or give Trained.lora targets that the model has."
            )
        master = {n: p.detach().to(held_back, copy=True) for n, p in trainable.items()}
        cast_weights(module.train(), compute)
        parts = split_model(module) if scalar is None else split_scalar(module, scalar)
        held = Held(spec, module, parts, parameters=trainable, master=master)
        self.models[name] = held
        self.set_optimiser(name, spec.optimiser)

    def set_optimiser(self, name: str, rule: Optimiser) -> None:
        """A fresh optimiser for a trained model."""
        held = self._trained(name)
        held.rule = rule
        held.updates = 0
        for tensor in held.master.values():
            tensor.grad = None
        held.optimiser = rule.build(held.master)

    def forward(
        self, model: str, batch: TokenBatch, *, needs: frozenset[Needs] = frozenset({"logprobs"})
    ) -> ModelOut:
        """The model's output on a batch, with gradient where autograd is on."""
        return token_outputs(self._held(model).parts, batch, needs=needs, layout=self.layout)

    def forward_backward(
        self,
        model: str,
        batch: TokenBatch,
        terms: Sequence[Term],
        counts: Sequence[Counts],
        stats: Sequence[Stats | None],
        *,
        rule: GradientRule | None = None,
        current: frozenset[str] = frozenset(),
    ) -> Forward:
        """Add the gradient of the terms on one micro-batch.

        Args:
            model: A trained model.
            batch: Rows of one micro-batch.
            terms: Terms that share the batch's view and tokens.
            counts: Sizes of the whole optimiser step, one a term.
            stats: Merged sums of the terms of reach ``step``, else None.
            rule: Differentiates in slices.
            current: Columns that equal the policy's own log-probs because its weights have not
                moved since they would have been probed (``old_logprobs`` at the first use).

        Raises:
            NumericsError: the loss is not finite.
        """
        held = self._trained(model)
        batch = on_device(batch, self.device)
        needs: frozenset[Needs] = frozenset().union(*(term.needs for term in terms))
        out = self.forward(model, batch, needs=needs)
        if current:
            own = dict.fromkeys(current, out.policy_logprobs.detach().float())
            batch = replace(batch, columns={**batch.columns, **own})
        given = zip(terms, counts, stats, strict=True)
        results = [term(batch, out, c, s) for term, c, s in given]
        loss = torch.stack([r.loss for r in results]).sum()
        if not torch.isfinite(loss):
            raise NumericsError(
                f"the loss of model {model!r} is {loss.item()} on a micro-batch of "
                f"{len(batch.ids)} rows; terms: {[type(t).__name__ for t in terms]}. Lower the "
                "learning rate, or look at rewards and log-probs with `posttrain view`."
            )
        self._backward(held, batch, results, loss, rule)
        metrics: dict[str, Tally] = {}
        for result in results:
            for name, tally in result.metrics.items():
                metrics[name] = metrics[name].merge(tally) if name in metrics else tally
        return Forward(
            loss=float(loss.detach()),
            metrics=metrics,
            policy_logprobs=out.policy_logprobs.detach(),
        )

    def _backward(
        self,
        held: Held,
        batch: TokenBatch,
        results: Sequence[TermOut],
        loss: Tensor,
        rule: GradientRule | None,
    ) -> None:
        if not loss.requires_grad:
            return
        if rule is None:
            loss.backward()
            self._collect(held, "")
            return
        for name, rows in rule.slices(batch).items():
            chosen = rows.unsqueeze(-1)
            part = [TermOut(r.losses, torch.where(chosen, r.weights, 0.0)).loss for r in results]
            torch.stack(part).sum().backward(retain_graph=True)
            self._collect(held, name)

    def _collect(self, held: Held, slice_name: str) -> None:
        """Move gradients from the module to the master's precision."""
        into = held.gradients.setdefault(slice_name, {})
        for name, parameter in held.parameters.items():
            if parameter.grad is None:
                continue
            gradient = parameter.grad.to(held.master[name].dtype)
            into[name] = into[name] + gradient if name in into else gradient
            parameter.grad = None

    def summarise(self, model: str, batch: TokenBatch, terms: Sequence[Term]) -> list[Stats]:
        """Each term's sums of one micro-batch, without gradient (terms of reach ``step``)."""
        needs: frozenset[Needs] = frozenset().union(*(term.needs for term in terms))
        with torch.no_grad():
            batch = on_device(batch, self.device)
            out = self.forward(model, batch, needs=needs)
            return [term.summary(batch, out) for term in terms]

    def optim_step(self, model: str, *, rule: GradientRule | None = None) -> Mapping[str, float]:
        """Apply the gathered gradient, then refresh the module and moving averages.

        Raises:
            NumericsError: the gradient is not finite; nothing is changed.
        """
        held = self._trained(model)
        if held.optimiser is None or held.rule is None:
            raise InternalError(f"model {model!r} has no optimiser")
        gradients = self._combined(held, rule)
        norm = float(torch.linalg.vector_norm(_norms(gradients))) if gradients else 0.0
        if not np.isfinite(norm):
            held.gradients.clear()
            raise NumericsError(
                f"the gradient of model {model!r} is {norm} at version {held.version}; the weights "
                "are unchanged. Lower the learning rate or use compute='float32'."
            )
        limit = held.rule.max_grad_norm
        shrink = min(1.0, limit / norm) if limit and norm > 0.0 else 1.0
        for name, tensor in held.master.items():
            gradient = gradients.get(name)
            tensor.grad = None if gradient is None else gradient * shrink
        rate = held.rule.lr * held.rule.schedule(held.updates)
        for group in held.optimiser.param_groups:
            group["lr"] = rate
        held.optimiser.step()
        self._refresh(held)
        held.gradients.clear()
        held.updates += 1
        held.version += 1
        self._follow(model)
        return {"grad_norm": norm, "learning_rate": rate}

    def _combined(self, held: Held, rule: GradientRule | None) -> dict[str, Tensor]:
        if rule is None:
            return held.gradients.get("", {})
        names = list(held.master)
        zero = {n: torch.zeros_like(held.master[n]) for n in names}
        lists = {s: [g.get(n, zero[n]) for n in names] for s, g in held.gradients.items()}
        return dict(zip(names, rule.combine(lists), strict=True)) if lists else {}

    @torch.no_grad()
    def _refresh(self, held: Held) -> None:
        for name, parameter in held.parameters.items():
            parameter.copy_(held.master[name])

    @torch.no_grad()
    def _follow(self, model: str) -> None:
        for name, held in self.models.items():
            if isinstance(held.spec, MovingAverage) and held.spec.of == model:
                source = self.export(model).tensors
                for key, own in held.module.named_parameters():
                    if own.is_floating_point():
                        own.lerp_(_tensor(source[key]).to(own.dtype), 1.0 - held.spec.decay)
                self.models[name].version += 1

    def score(self, items: Sequence[ScoreItem]) -> list[np.ndarray]:
        """One array an item, in order; see ``types.engine.Engine.score``."""
        return score_items(
            items, {n: held.parts for n, held in self.models.items()}, device=self.device
        )

    def version(self, model: str) -> int:
        """Updates applied to the model so far."""
        return self._held(model).version

    @torch.no_grad()
    def export(self, model: str) -> Tensors:
        """Weights in compute precision under the plain model's names, adapters merged.

        Weights that are tied are listed once.
        """
        held = self._held(model)
        spec = held.spec
        if isinstance(spec, Trained) and spec.lora is not None:
            return Tensors(merged(held.module))
        return Tensors(dict(held.module.named_parameters()))

    def fingerprint(self, model: str) -> str:
        """Hash of the exported weights."""
        tensors = {n: _tensor(t) for n, t in self.export(model).tensors.items()}
        return fingerprint(tensors)

    @torch.no_grad()
    def copy_weights(self, source: str, target: str) -> None:
        """Make a frozen or averaged model equal to another (reference reset)."""
        tensors = self.export(source).tensors
        for key, own in self._held(target).module.named_parameters():
            own.copy_(_tensor(tensors[key]))

    def state(self) -> dict[str, Any]:
        """All that ``load_state`` needs, as tensors and plain data."""
        found: dict[str, Any] = {}
        for name, held in self.models.items():
            entry: dict[str, Any] = {"version": held.version, "updates": held.updates}
            if held.optimiser is not None:
                entry["master"] = dict(held.master)
                entry["optimiser"] = held.optimiser.state_dict()
            else:
                entry["module"] = dict(held.module.state_dict())
            found[name] = entry
        return found

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become a saved state, bit for bit."""
        for name, entry in state.items():
            held = self._held(name)
            held.version, held.updates = entry["version"], entry["updates"]
            if "master" not in entry:
                held.module.load_state_dict(entry["module"])
                continue
            for key, tensor in entry["master"].items():
                held.master[key].copy_(tensor)
            if held.optimiser is not None:
                held.optimiser.load_state_dict(copy.deepcopy(entry["optimiser"]))
            self._refresh(held)

    def _held(self, name: str) -> Held:
        if name not in self.models:
            raise ConfigError(f"no model {name!r} here; there are {sorted(self.models)}.")
        return self.models[name]

    def _trained(self, name: str) -> Held:
        held = self._held(name)
        if not isinstance(held.spec, Trained):
            raise ConfigError(
                f"model {name!r} is {type(held.spec).__name__}, so it cannot be trained; "
                "declare it as Trained."
            )
        return held


def _tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise InternalError(f"weights must be tensors, got {type(value).__name__}")
    return value


def _norms(gradients: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(g).double() for g in gradients.values()])
