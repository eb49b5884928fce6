"""Attention over packed sequences with the flash kernels that PyTorch ships, for transformers' models.

flash-attn, which verl expects for packed sequences, has no wheel on PyPI and takes hours to build. verl imports this
module in its workers (`actor_rollout_ref.model.external_lib`) before it makes the model, to have it registered.
"""

from typing import Any

import torch
from torch.nn.attention import varlen
from transformers import AttentionInterface
from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids

from toolrl.verl_bridge.settings import PACKED_ATTENTION


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    position_ids: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each of the sequences that are packed into one row.

    Args:
        module: the model's attention layer.
        query: bfloat16 or float16 on a GPU, shape (1, heads, tokens, head size).
        key, value: shape (1, key-value heads, tokens, head size).
        attention_mask: None; padded batches are not for this function.
        position_ids: shape (1, tokens); a sequence begins where it is 0.
        scaling: of the scores; None for 1/√(head size).
        sliding_window: tokens that a token sees, itself included; None for all before it.

    Returns:
        the output, shape (1, tokens, heads, head size), and no weights.

    Raises:
        ValueError: for a padded batch, dropout or soft-capped scores.
    """
    if attention_mask is not None or query.shape[0] != 1 or dropout or softcap:
        raise ValueError(
            f"attn_implementation {PACKED_ATTENTION} takes packed sequences, without dropout and soft-capping: set "
            "actor_rollout_ref.model.override_config.attn_implementation in rollout.overrides to another one, "
            "flex_attention for example."
        )
    (starts, _), (longest, _) = prepare_fa_kwargs_from_position_ids(position_ids)
    tokens = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    window = (sliding_window - 1 if sliding_window else -1, 0)
    output = varlen.varlen_attn(*tokens, starts, starts, int(longest), int(longest), scale=scaling, window_size=window)
    return output[None], None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
