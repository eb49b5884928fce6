"""The attention of training, over packed sequences; on a CPU with a stand-in for the GPU's kernel."""

import pytest
import torch
from toolrl.verl_bridge import packed_attention
from toolrl.verl_bridge.settings import PACKED_ATTENTION
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

LENGTHS = (7, 12, 1, 5)
SHAPE = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def stand_in(query, key, value, starts, starts_key, longest, longest_key, *, scale, window_size):  # type: ignore[no-untyped-def]
    """What torch.nn.attention.varlen.varlen_attn computes, by its documentation."""
    assert torch.equal(starts, starts_key) and longest == longest_key == starts.diff().max()
    outputs = []
    for start, end in zip(starts[:-1], starts[1:], strict=True):
        q, k, v = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
        seen = (distance >= 0) & ((distance <= window_size[0]) if window_size[0] >= 0 else True)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
        outputs.append(attended.transpose(0, 1))
    return torch.cat(outputs)


def models(kind: str, attention: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM._from_config(LlamaConfig(**SHAPE), attn_implementation=attention)
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1} if kind == "sliding" else {}
    return Qwen2ForCausalLM._from_config(Qwen2Config(**SHAPE, **window), attn_implementation=attention)


@pytest.mark.parametrize("attention", [PACKED_ATTENTION, "sdpa"])
@pytest.mark.parametrize("kind", ["qwen2", "llama", "sliding"])
def test_packed_sequences_do_not_see_each_other(kind: str, attention: str) -> None:
    """Ours has to see to it; transformers' own, which a user may set instead, go by the positions too."""
    alone, together = models(kind, "sdpa"), models(kind, attention)
    sequences = [torch.randint(0, 300, (length,)) for length in LENGTHS]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    expected = torch.cat([alone(input_ids=ids[None]).logits[0] for ids in sequences])
    packed = together(input_ids=torch.cat(sequences)[None], position_ids=positions, use_cache=False).logits[0]
    torch.testing.assert_close(packed, expected)
    for logits in (expected, packed):
        logits.logsumexp(-1).sum().backward()
    for (name, one), other in zip(alone.named_parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, msg=lambda text, name=name: f"{name}: {text}")


def test_what_the_kernel_cannot_do_is_refused() -> None:
    query = torch.zeros(1, 4, 5, 16)
    for wrong in ({"softcap": 30.0}, {"dropout": 0.1}, {"s_aux": torch.zeros(4)}):
        with pytest.raises(ValueError, match=r"rollout\.overrides"):
            packed_attention.packed_attention(
                torch.nn.Module(), query, query, query, None, position_ids=torch.arange(5)[None], **wrong
            )


def packed(device: str, dtype: torch.dtype, sliding_window: int | None = None) -> tuple[torch.Tensor, ...]:
    """Query, key, value, where the sequences start, and what attending to them one by one on a CPU gives."""
    torch.manual_seed(0)
    tensors = [torch.randn(1, heads, sum(LENGTHS), 64, dtype=dtype) for heads in (4, 2, 2)]
    starts = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    expected = packed_attention._one_by_one(*(each.float() for each in tensors), starts.tolist(), None, sliding_window)
    return *(each.to(device) for each in (*tensors, starts)), expected


@pytest.mark.parametrize("sliding_window", [None, 4])
def test_the_kernel_is_asked_for_the_same(sliding_window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention.varlen, "varlen_attn", stand_in)
    *arguments, expected = packed("cpu", torch.float32, sliding_window)
    output = packed_attention._flash(*arguments, max(LENGTHS), None, sliding_window)
    torch.testing.assert_close(output, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a GPU")
@pytest.mark.parametrize("sliding_window", [None, 4])
def test_the_kernel_computes_the_same(sliding_window: int | None) -> None:
    *arguments, expected = packed("cuda", torch.bfloat16, sliding_window)
    output = packed_attention._flash(*arguments, max(LENGTHS), None, sliding_window)
    torch.testing.assert_close(output.float().cpu(), expected, atol=2e-2, rtol=2e-2)
