"""A Llama with random weights, with its own tokenizer and chat template, as people save one."""

from __future__ import annotations

from typing import Any

TEXT = ("The server answers one token at a time.", "A caller who leaves frees the slot.") * 8

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save(folder: str = "llama") -> None:
    """Write the model and its tokenizer to `folder`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokens(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def save_gpt2(folder: str = "gpt2") -> None:
    """Write a model of an architecture that the builder does not know."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = tokens(folder)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(folder)


def tokens(folder: str) -> Any:
    """Train a tokenizer, save it in `folder`, and return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<end>", "<user>", "<assistant>"]
    made.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer
