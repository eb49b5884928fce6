"""Attention over packed sequences with what PyTorch ships, for transformers' models.

flash-attn, which verl expects for packed sequences, has no wheel on PyPI and takes hours to build. PyTorch has its
kernels for GPUs; on a CPU the sequences are attended to one after the other. verl imports this module in its workers
(`actor_rollout_ref.model.external_lib`) before it makes the model, to have it registered.
"""

from itertools import pairwise
from typing import Any

import torch
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention
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
    s_aux: torch.Tensor | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each of the sequences that are packed into one row.

    Args:
        module: the model's attention layer.
        query: shape (1, heads, tokens, head size); on a GPU in bfloat16 or float16.
        key, value: shape (1, key-value heads, tokens, head size).
        attention_mask: None; padded batches are not for this function.
        position_ids: shape (1, tokens); a sequence begins where it is 0.
        scaling: of the scores; None for 1/√(head size).
        sliding_window: tokens that a token sees, itself included; None for all before it.

    Returns:
        the output, shape (1, tokens, heads, head size), and no weights.

    Raises:
        ValueError: for a padded batch, dropout, soft-capped scores or attention sinks (`s_aux`).
    """
    if attention_mask is not None or query.shape[0] != 1 or dropout or softcap or s_aux is not None:
        raise ValueError(
            f"attn_implementation {PACKED_ATTENTION} takes packed sequences, without dropout, soft-capping and sinks: "
            "set +actor_rollout_ref.model.override_config.attn_implementation in rollout.overrides to another one, "
            "flex_attention for example."
        )
    (starts, _), (longest, _) = prepare_fa_kwargs_from_position_ids(position_ids)
    if query.device.type == "cpu":
        return _one_by_one(query, key, value, starts.tolist(), scaling, sliding_window), None
    return _flash(query, key, value, starts, int(longest), scaling, sliding_window), None


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    queries, keys, values = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    window = (sliding_window - 1 if sliding_window else -1, 0)
    output = varlen.varlen_attn(
        queries, keys, values, starts, starts, longest, longest, scale=scaling, window_size=window
    )
    assert isinstance(output, torch.Tensor)
    return output[None]


def _one_by_one(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: list[int],
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    outputs = []
    for start, end in pairwise(starts):
        queries, keys, values = (tensor[:, :, start:end] for tensor in (query, key, value))
        seen = None
        if sliding_window and sliding_window < end - start:
            seen = torch.ones(end - start, end - start, dtype=torch.bool).tril().triu(1 - sliding_window)
        outputs.append(
            scaled_dot_product_attention(
                queries, keys, values, attn_mask=seen, is_causal=seen is None, scale=scaling, enable_gqa=True
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
