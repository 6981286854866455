"""What a score item wants, read off logits; one wording for engines and learners."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from posttrain.errors import EngineError, InternalError
from posttrain.types.engine import ScoreItem
from posttrain.types.probe import Entropy, Logprobs, TopK


def wanted(logits: Float[Tensor, "T V"], target: Int[Tensor, " T"], item: ScoreItem) -> np.ndarray:
    """Log-probs [T], entropies [T] or top-k [T, 2 k] of the target tokens, float32.

    Row t of ``logits`` precedes token t. Temperature 0 is read as 1, for a greedy token's own
    log-prob would be 0 whatever the model thinks of it.

    Raises:
        EngineError: For a top-k of more tokens than there are.
        InternalError: For a want that is not read off logits.
    """
    logprobs = torch.log_softmax(logits.float() / (item.temperature or 1.0), dim=-1)
    match item.want:
        case Logprobs():
            found = logprobs.gather(1, target[:, None]).squeeze(1)
        case Entropy():
            found = torch.special.entr(logprobs.exp()).sum(-1)
        case TopK(k=k):
            if not 1 <= k <= logits.shape[-1]:
                raise EngineError(
                    f"TopK.k must be in [1, {logits.shape[-1]}], the tokens of the model "
                    f"{item.model!r}, got {k}."
                )
            values, ids = logprobs.topk(k, dim=-1)
            found = torch.cat((values, ids.float()), dim=1)
        case _:
            raise InternalError(f"{item.want!r} is not read off logits")
    return found.cpu().numpy()
