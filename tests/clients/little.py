"""A tiny Llama with random weights from a seed, and prompts for it: nothing is downloaded."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

WORDS = 512
CONTEXT = 4096


def write(folder: Path, seed: int = 7, layers: int = 4, heads: int = 4, head: int = 64, context: int = CONTEXT) -> Path:
    """Writes the model: float32, so that a token has 8 bytes of KV for each layer, head and place in a head; by default
    8 KiB. Its weights are wide enough that the answers hang on the whole context."""
    names = "torch", "transformers", "tokenizers", "tokenizers.models", "tokenizers.pre_tokenizers"
    torch, transformers, tokenizers, models, pre_tokenizers = map(importlib.import_module, names)
    torch.manual_seed(seed)
    shape = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=heads * head, intermediate_size=2 * heads * head, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=head, max_position_embeddings=context,
        initializer_range=0.2, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False, torch_dtype="float32",
    )  # fmt: skip
    transformers.LlamaForCausalLM(shape).to(torch.float32).save_pretrained(folder, safe_serialization=True)
    words = {"<s>": 0, "</s>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, WORDS)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


def prompt(n: int, seed: int) -> list[int]:
    """So many tokens."""
    dice = random.Random(f"{seed}/{n}")
    return [dice.randrange(3, WORDS) for _ in range(n)]
