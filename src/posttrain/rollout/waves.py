"""How requests reach the engine: in waves (exact) or as they come (stream).

A matrix product is not bitwise the same for every number of rows, so tokens depend on what is
sampled beside them. ``Waves`` makes that repeatable: it waits until everybody who could still do
something is waiting for the engine, sends all ready requests in their order, and hands out the
answers when all are there. What is in a wave then depends on no clock. ``Stream`` sends what
gathers within a few milliseconds and hands out each answer at once.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from typing_extensions import override

from posttrain.errors import DeadlineError, EngineError, PosttrainError
from posttrain.rollout.waiting import within
from posttrain.types.engine import Engine, Sample, SampleRequest
from posttrain.types.episode import Stop

Order: TypeAlias = tuple[int, ...]
"""(phase, step, draw index, round, ask, member, turn): the place of a request in a wave."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A sample, and the seconds its request waited before the engine took it."""

    sample: Sample
    queued_s: float


@dataclass(slots=True)
class _Waiting:
    order: Order
    request: SampleRequest
    future: asyncio.Future[Drawn]
    since: float


def _failed(key: str) -> Sample:
    none = np.zeros(0, np.int32)
    return Sample(
        key=key, ids=none, logprobs=none.astype(np.float32), version=none, stop=Stop.FAILED
    )


def _check(sample: Sample, asked: Sequence[str]) -> None:
    if sample.key not in asked:
        raise EngineError(
            f"the engine answered {sample.key!r}, which was not asked or was answered before. "
            f"Open requests: {sorted(asked)[:4]}."
        )
    sizes = {len(sample.ids), len(sample.logprobs), len(sample.version)}
    if len(sizes) > 1:
        raise EngineError(
            f"the engine's sample {sample.key!r} has {len(sample.ids)} ids, "
            f"{len(sample.logprobs)} log-probs and {len(sample.version)} versions; a sample has "
            "one of each a token."
        )


async def _drain(
    engine: Engine, requests: Sequence[SampleRequest], wait_s: float
) -> AsyncIterator[Sample]:
    """Every request's sample; one that the engine left out comes as failed."""
    stream = engine.sample(requests)
    missing = {r.key: r for r in requests}
    try:
        while missing:
            what = (
                f"the engine's next sample: {len(missing)} of {len(requests)} requests are "
                f"unanswered, among them {next(iter(missing))!r}"
            )
            try:
                sample = await within(anext(stream), wait_s, what)
            except StopAsyncIteration:
                break
            _check(sample, list(missing))
            del missing[sample.key]
            yield sample
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    if len(missing) == len(requests):
        raise EngineError(f"the engine ended without answering any of {len(requests)} requests.")
    for key in missing:
        yield _failed(key)


class Sampler(ABC):
    """Takes requests one by one, knows how many could still come, and asks the engine.

    Whoever may ask is counted: ``enter`` when groups begin, ``fork`` when a group lends its turn
    to its episodes, ``leave`` when one ends. Only waves need the count.
    """

    def __init__(self, engine: Engine, *, wait_s: float, spent: int = 0) -> None:
        self._engine = engine
        self._wait_s = wait_s
        self._ready: dict[str, _Waiting] = {}
        self.spent = spent
        """Tokens sampled so far in the step."""

    async def draw(self, order: Order, request: SampleRequest) -> Drawn:
        """The sample of one request.

        Raises:
            EngineError: the engine failed as a whole; the cause is attached.
            DeadlineError: it stayed silent.
        """
        future: asyncio.Future[Drawn] = asyncio.get_running_loop().create_future()
        self._ready[request.key] = _Waiting(order, request, future, time.monotonic())
        self._look()
        return await future

    @abstractmethod
    def _look(self) -> None:
        """Something changed: send requests if it is time."""

    def enter(self, num: int) -> None:  # noqa: B027  a stream need not count
        """``num`` more may ask."""

    def fork(self, num: int) -> None:
        """One becomes ``num``."""
        self.enter(num - 1)

    def leave(self) -> None:  # noqa: B027
        """One fewer may ask."""

    @abstractmethod
    async def close(self) -> None:
        """End what is under way."""

    def _deliver(self, waiting: _Waiting, sample: Sample, sent: float) -> None:
        self.spent += int(np.isfinite(sample.logprobs).sum())
        if not waiting.future.done():
            waiting.future.set_result(Drawn(sample, sent - waiting.since))

    async def _send(self, batch: Sequence[_Waiting]) -> AsyncIterator[tuple[_Waiting, Sample]]:
        """The batch with its samples; if the engine fails, everybody waiting gets the error."""
        by_key = {w.request.key: w for w in batch}
        requests = [w.request for w in batch]
        try:
            async for sample in _drain(self._engine, requests, self._wait_s):
                yield by_key[sample.key], sample
        except PosttrainError as error:
            self._fail(batch, error)
        except Exception as error:  # noqa: BLE001  the engine's boundary: reported to every waiter
            message = (
                f"the engine failed while sampling {len(batch)} requests: "
                f"{type(error).__name__}: {error}"
            )
            failure = EngineError(message)
            failure.__cause__ = error
            self._fail(batch, failure)

    @staticmethod
    def _fail(batch: Sequence[_Waiting], error: Exception) -> None:
        for waiting in batch:
            if not waiting.future.done():
                waiting.future.set_exception(error)


class Waves(Sampler):
    """All ready requests in order, once nobody else can do anything."""

    def __init__(
        self,
        engine: Engine,
        *,
        wait_s: float,
        spent: int = 0,
        between: Callable[[], None] | None = None,
        stuck_s: float = 3600.0,
    ) -> None:
        super().__init__(engine, wait_s=wait_s, spent=spent)
        self._between = between
        self._stuck_s = stuck_s
        self._alarm: asyncio.TimerHandle | None = None
        self._live = 0
        self._count = 0
        self._wave: asyncio.Task[None] | None = None

    @override
    def enter(self, num: int) -> None:
        """``num`` more may ask."""
        self._live += num

    @override
    def leave(self) -> None:
        """One fewer may ask: the others may now make a wave."""
        self._live -= 1
        self._look()

    @override
    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if self._wave is None and self._ready and len(self._ready) == self._live:
            self._wave = loop.create_task(self._run())
        elif self._alarm is None and self._ready:
            self._alarm = loop.call_later(self._stuck_s, self._give_up)

    def _give_up(self) -> None:
        error = DeadlineError(
            f"waited {self._stuck_s:g} s for a wave: {len(self._ready)} of {self._live} have asked "
            "the engine, the others (environments, verifiers) neither ask nor end."
        )
        self._fail(list(self._ready.values()), error)

    def _quiet(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def _run(self) -> None:
        self._quiet()
        batch = sorted(self._ready.values(), key=lambda w: w.order)
        self._ready = {}
        try:
            if self._count and self._between is not None:
                self._between()
        except Exception as error:  # noqa: BLE001  the caller's hook: reported to every waiter
            self._fail(batch, error)
            return
        self._count += 1
        sent = time.monotonic()
        answers = [answer async for answer in self._send(batch)]
        self._wave = None
        for waiting, sample in sorted(answers, key=lambda a: a[0].order):
            self._deliver(waiting, sample, sent)

    @override
    async def close(self) -> None:
        """End the wave under way."""
        self._quiet()
        if self._wave is not None:
            self._wave.cancel()
            await asyncio.gather(self._wave, return_exceptions=True)


class Stream(Sampler):
    """What gathers within ``gather_s`` goes off together; each answer is handed out at once."""

    def __init__(
        self, engine: Engine, *, wait_s: float, spent: int = 0, gather_s: float = 0.005
    ) -> None:
        super().__init__(engine, wait_s=wait_s, spent=spent)
        self._gather_s = gather_s
        self._timer: asyncio.TimerHandle | None = None
        self._sent: set[asyncio.Task[None]] = set()

    @override
    def _look(self) -> None:
        if self._timer is None and self._ready:
            self._timer = asyncio.get_running_loop().call_later(self._gather_s, self._go)

    def _go(self) -> None:
        batch, self._ready, self._timer = list(self._ready.values()), {}, None
        task = asyncio.get_running_loop().create_task(self._run(batch))
        self._sent.add(task)
        task.add_done_callback(self._sent.discard)

    async def _run(self, batch: Sequence[_Waiting]) -> None:
        sent = time.monotonic()
        async for waiting, sample in self._send(batch):
            self._deliver(waiting, sample, sent)

    @override
    async def close(self) -> None:
        """End what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._sent:
            task.cancel()
        await asyncio.gather(*self._sent, return_exceptions=True)
