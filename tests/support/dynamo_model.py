"""Writes the files of a model that a Dynamo mock worker needs: configuration and tokenizer.

Run with Dynamo's interpreter: `python dynamo_model.py FOLDER`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def write_model(folder: Path) -> None:
    """Write a tokenizer of single bytes and a small Llama's configuration."""
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=258, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(["a node"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    llama = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 300,
        "max_position_embeddings": 16384,
        "torch_dtype": "float32",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    (folder / "config.json").write_text(json.dumps(llama | ends))
    (folder / "generation_config.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
