"""The embedded model: a tiny untrained Qwen2 with its own tokenizer, for machines with no model hub.

The tokenizer is a byte-level BPE over the words of the task's own conversations, with whole numbers as single tokens.
The parts that every conversation shares (system text, tool schema, the end of the user's turn) are one token each:
a prompt is then several times shorter, which is what makes a laptop run short.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolrl.models.chat_template import HERMES_ON_CHATML
from toolrl.tasks.base import Message

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

WORDS = r"\d+|\n| ?[A-Za-z_]+(?: (?=\d))?| ?[^\sA-Za-z_\d]+(?: (?=\d))?|\s"
SHORTEST_SHARED_PART = 20


def shared_parts(prompts: Sequence[str]) -> list[str]:
    """The long pieces that all rendered prompts begin or end with, without special tokens, tags and line breaks."""
    prefix = os.path.commonprefix(list(prompts))
    suffix = os.path.commonprefix([prompt[::-1] for prompt in prompts])[::-1]
    boundary = "|".join(re.escape(token) for token in (*SPECIAL_TOKENS, *TOOL_TAGS, "\n"))
    pieces = re.split(boundary, prefix)[:-1] + re.split(boundary, suffix)
    return list(dict.fromkeys(piece for piece in pieces if len(piece) >= SHORTEST_SHARED_PART))


def make_tokenizer(texts: Sequence[str], shared: Sequence[str], vocab_size: int) -> Any:
    """Trains the tokenizer on rendered conversations.

    Args:
        texts: the conversations.
        shared: pieces of text that become one token each.
        vocab_size: the most tokens it may have.

    Returns:
        A `PreTrainedTokenizerFast` with the chat template.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    visible = [*TOOL_TAGS, *shared]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    # like Qwen2.5's tags: single tokens, yet kept when special tokens are skipped
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in visible])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(visible),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    numbers = "\n".join(str(number) for number in range(100))  # each becomes a single token
    tokenizer.train_from_iterator([*(_without(text, visible) for text in texts), *[numbers] * 100], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=HERMES_ON_CHATML,
        model_max_length=2048,
    )


def _without(text: str, parts: Sequence[str]) -> str:
    for part in parts:
        text = text.replace(part, "\n")
    return text


def tokenizer_for(
    conversations: list[list[Message]],
    prompts: Sequence[list[list[Message]]],
    tools: list[dict[str, Any]],
    vocab_size: int,
) -> Any:
    """The tokenizer of a task: trained on its conversations, with what its prompts and calls share as single tokens.

    Args:
        conversations: of the warm start.
        prompts: for each kind of prompt (with tools, without), some of them.
        tools: the schemas of the offered tools.
        vocab_size: the most tokens it may have.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(chats: list[list[Message]], add_generation_prompt: bool) -> list[str]:
        rendered: Any = render_jinja_template(
            conversations=chats,
            tools=tools,  # type: ignore[arg-type]
            chat_template=HERMES_ON_CHATML,
            add_generation_prompt=add_generation_prompt,
        )
        return list(rendered[0])

    calls = [
        f'{{"name": "{tool["function"]["name"]}", "arguments": {{"{argument}": "'
        for tool in tools
        for argument in tool["function"]["parameters"]["properties"]
    ]
    shared = [part for kind in prompts for part in shared_parts(render(kind, True))]
    return make_tokenizer(render(conversations, False), list(dict.fromkeys(shared + calls)), vocab_size)


def make_model(tokenizer: Any, shape: Mapping[str, int], seed: int) -> Any:
    """A randomly initialised `Qwen2ForCausalLM` of the given shape (hidden_size, layers, heads)."""
    return random_model(
        tokenizer,
        seed,
        hidden_size=shape["hidden_size"],
        intermediate_size=2 * shape["hidden_size"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"],
        max_position_embeddings=2048,
    )


def random_model(tokenizer: Any, seed: int, **architecture: Any) -> Any:
    """A randomly initialised `Qwen2ForCausalLM` with tied embeddings; `architecture` is in `Qwen2Config`'s words."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **architecture,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def save(directory: Path, tokenizer: Any, model: Any) -> None:
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)
