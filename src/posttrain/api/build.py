"""From a run's data to what executes it: models, renderers, engine, runner, learner."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posttrain.data.chat import Renderer
from posttrain.data.models import load_model, load_tokenizer, without_bars
from posttrain.data.precision import cast_weights
from posttrain.errors import ConfigError
from posttrain.rollout.prompts import Seating
from posttrain.rollout.runner import Runner
from posttrain.rollout.transformers import TransformersEngine
from posttrain.trainers.learner import DTYPES, LocalLearner
from posttrain.trainers.loop import Machinery
from posttrain.trainers.stages import probe_stage
from posttrain.types.engine import Engine
from posttrain.types.events import Emit
from posttrain.types.models import (
    Frozen,
    ModelSpec,
    MovingAverage,
    Trained,
    fast_precision,
)
from posttrain.types.run import EngineSpec, Local, Run, Transformers


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run's models before anything is trained."""

    modules: Mapping[str, nn.Module]
    """In master precision for trained models."""
    tokenizers: Mapping[str, Any]
    renderers: Mapping[str, Renderer]
    """By seat."""


def device_of(run: Run) -> str:
    """``cuda`` if asked for or there, else ``cpu``."""
    wanted = run.trainer.device if isinstance(run.trainer, Local) else "auto"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("Local.device is 'cuda', but torch finds no CUDA device; use 'auto'.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def with_precisions(run: Run, device: str) -> Run:
    """The run with every ``auto`` precision settled for the device."""
    fast = fast_precision(device)
    models = {
        name: replace(spec, compute=fast)
        if isinstance(spec, Trained | Frozen) and spec.compute == "auto"
        else spec
        for name, spec in run.models.items()
    }
    return replace(run, models=models)


def load(run: Run) -> Loaded:
    """Read every model of a run once; copies of another model share its files.

    Raises:
        ConfigError: a model cannot be read, or copies one that is not there.
    """
    modules: dict[str, nn.Module] = {}
    tokenizers: dict[str, Any] = {}
    for name, spec in sorted(run.models.items(), key=lambda item: _copies(item[1]) is not None):
        source = _copies(spec)
        if source is None:
            path, seed = _path(name, spec)
            modules[name] = load_model(path, dtype=_master(spec), seed=seed)
            tokenizers[name] = load_tokenizer(path)
        elif source in modules:
            modules[name] = copy.deepcopy(modules[source])
            tokenizers[name] = tokenizers[source]
        else:
            raise ConfigError(
                f"model {name!r} copies {source!r}, which is not a model with a path of its own; "
                f"those are {sorted(modules)}."
            )
    renderers = {}
    for seat, placed in run.seats.items():
        spec = run.models[placed.model]
        tokenizer = tokenizers[placed.model]
        template = getattr(spec, "template", None)
        renderers[seat] = Renderer(tokenizer, template, stop_ids=_stops(modules[placed.model]))
    return Loaded(modules, tokenizers, renderers)


def _copies(spec: ModelSpec) -> str | None:
    if isinstance(spec, MovingAverage) or (isinstance(spec, Frozen) and spec.path is None):
        return spec.of
    return None


def _path(name: str, spec: ModelSpec) -> tuple[str, int]:
    if isinstance(spec, Trained):
        return spec.path, spec.init_seed
    if isinstance(spec, Frozen) and spec.path is not None:
        return spec.path, 0
    raise ConfigError(f"model {name!r} is {type(spec).__name__}, which says no path to load.")


def _master(spec: ModelSpec) -> torch.dtype:
    compute = getattr(spec, "compute", "float32")
    if isinstance(spec, Trained):
        return torch.float64 if compute == "float64" else torch.float32
    return DTYPES[compute]


def _stops(module: nn.Module) -> tuple[int, ...]:
    """End ids of the model's generation settings."""
    found = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)


def build(run: Run, *, emit: Emit, engine: Engine | None = None) -> tuple[Machinery, Loaded]:
    """Everything that executes a run.

    Args:
        run: The run.
        emit: Takes the events.
        engine: An engine to use instead of the one ``run.engine`` describes.
    """
    device = device_of(run)
    run = with_precisions(run, device)
    loaded = load(run)
    learner = LocalLearner(device=device)
    speaking = sorted({seat.model for seat in run.seats.values()})
    if engine is None:
        engine = _engine(run.engine, loaded, {n: run.models[n] for n in speaking}, device)
    for name, spec in run.models.items():
        learner.add(name, spec, loaded.modules[name])
    exact = run.trainer.exact if isinstance(run.trainer, Local) else False
    render = Seating(run.seats, loaded.renderers).render
    runner = Runner(
        engine=engine,
        renderers=loaded.renderers,
        seats=run.seats,
        decode=run.decode,
        limits=run.limits,
        seed=run.seed,
        exact=device == "cpu" if exact is None else exact,
        emit=emit,
        probe=lambda groups, probes: probe_stage(groups, probes, learner, render=render),
    )
    machinery = Machinery(
        learner=learner,
        engine=engine,
        runner=runner,
        render=render,
        save_model=lambda folder: save_model(folder, run, learner, loaded),
        emit=emit,
    )
    return machinery, loaded


def _engine(
    spec: EngineSpec, loaded: Loaded, specs: Mapping[str, ModelSpec], device: str
) -> Engine:
    if not isinstance(spec, Transformers):
        raise ConfigError(
            f"no engine is known for {type(spec).__name__}; use Transformers(), or pass one with "
            "fit(run, engine=...)."
        )
    models = {}
    for name in specs:
        own = getattr(specs[name], "compute", "float32")
        dtype = DTYPES[own if spec.compute == "auto" else spec.compute]
        models[name] = cast_weights(copy.deepcopy(loaded.modules[name]), dtype).to(device)
    return TransformersEngine(
        models,
        decode={n: loaded.tokenizers[n].decode for n in specs},
        max_rows=spec.max_rows,
    )


def save_model(folder: Path, run: Run, learner: LocalLearner, loaded: Loaded) -> None:
    """Write the trained models in Hugging Face layout: the first one in ``folder`` itself."""
    trained = [(name, s) for name, s in run.models.items() if isinstance(s, Trained)]
    for place, (name, spec) in enumerate(trained):
        into = folder if place == 0 else folder / "models" / name
        into.mkdir(parents=True, exist_ok=True)
        module: Any = learner.models[name].module
        if spec.lora is not None:
            module.save_pretrained(into / "adapter")
            module = copy.deepcopy(module).merge_and_unload()
            module.load_state_dict(dict(learner.export(name).tensors), strict=False)
        with without_bars():
            module.save_pretrained(into)
        tokenizer = copy.copy(loaded.tokenizers[name])
        for seat, placed in run.seats.items():
            if placed.model == name and spec.template is not None:
                tokenizer.chat_template = loaded.renderers[seat].chat.template()
        tokenizer.save_pretrained(into)
