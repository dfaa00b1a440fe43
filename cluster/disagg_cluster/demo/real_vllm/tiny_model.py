"""A tiny random Llama with its own tokenizer, written to a folder that vLLM can serve.

Run with the engine's interpreter: `python tiny_model.py OUT_DIR [--hidden 128] [--layers 2]`.
Nothing is downloaded and nothing of ours is imported. The same arguments give the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Written last into the folder: its parameters, so that a second run can recognise it.
RECIPE_FILE = "tiny_model.json"

_HEAD_DIM = 32
_MAX_POSITIONS = 2048
# Far larger than usual: the greedy token then depends on the whole context, so that a decode engine
# that lost the prompt's KV generates another text than one that has it.
_INITIALIZER_RANGE = 0.3
_SENTENCES = (
    "The prefill engine reads the prompt and hands its keys and values over.",
    "The decode engine writes one token after another until it is done.",
    "A node counts the seconds that each phase holds its devices.",
    "Nothing that was not measured is ever called zero.",
)
_CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
)


class ModelFolderError(Exception):
    """The output folder holds something else; it is left as it is."""


def recipe(*, hidden: int, layers: int, seed: int) -> dict[str, int]:
    """Return the parameters that determine the folder's content: equal recipes, equal weights."""
    if hidden < 2 * _HEAD_DIM or hidden % (2 * _HEAD_DIM):
        raise ValueError(f"hidden must be a multiple of {2 * _HEAD_DIM}: {hidden}")
    if layers < 1:
        raise ValueError(f"layers must be at least 1: {layers}")
    return {"hidden": hidden, "layers": layers, "seed": seed, "format": 1}


def is_made(folder: Path, wanted: dict[str, int]) -> bool:
    """Return whether `folder` already holds the wanted model.

    Raises `ModelFolderError` when it exists and holds anything else.
    """
    if not folder.exists():
        return False
    try:
        found = json.loads((folder / RECIPE_FILE).read_text())
    except (OSError, ValueError):
        raise ModelFolderError(
            f"{folder} exists and is no tiny model; name another folder"
        ) from None
    if found != wanted:
        raise ModelFolderError(f"{folder} holds another model: {found}; remove it to make {wanted}")
    return True


def write_model(folder: Path, wanted: dict[str, int]) -> None:
    """Write tokenizer and weights into the existing `folder`."""
    # Slow imports, needed only when there is something to make; the engine's, not ours.
    import torch
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        _SENTENCES,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=["<s>", "</s>", "<pad>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)

    heads = wanted["hidden"] // _HEAD_DIM
    torch.manual_seed(wanted["seed"])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=bpe.get_vocab_size(),
            hidden_size=wanted["hidden"],
            intermediate_size=2 * wanted["hidden"],
            num_hidden_layers=wanted["layers"],
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=_HEAD_DIM,
            max_position_embeddings=_MAX_POSITIONS,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            initializer_range=_INITIALIZER_RANGE,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
            dtype="float32",
        )
    )
    model.save_pretrained(folder, safe_serialization=True)


def make(
    folder: Path,
    wanted: dict[str, int],
    write: Callable[[Path, dict[str, int]], None] = write_model,
) -> bool:
    """Make the model unless it exists; return True if it was made now.

    The folder appears complete or not at all: it is written beside its path and renamed.
    """
    if is_made(folder, wanted):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    half_made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write(half_made, wanted)
        (half_made / RECIPE_FILE).write_text(json.dumps(wanted))
        half_made.chmod(0o755)
        os.rename(half_made, folder)  # noqa: PTH104 - same file system, must not replace files
    except OSError:
        # Another process may have been first; then its folder is as good as ours.
        if not is_made(folder, wanted):
            raise
        return False
    finally:
        shutil.rmtree(half_made, ignore_errors=True)
    return True


def main(argv: list[str] | None = None) -> int:
    """Parse the command line; return 0 if the model exists, 2 if it cannot be made as requested."""
    parser = argparse.ArgumentParser(prog="tiny_model.py", description="Write a tiny random Llama.")
    parser.add_argument("folder", type=Path, metavar="OUT_DIR")
    parser.add_argument("--hidden", type=int, default=128, help="width, a multiple of 64")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    try:
        made = make(asked.folder, recipe(hidden=asked.hidden, layers=asked.layers, seed=asked.seed))
    except (ModelFolderError, ValueError) as error:
        sys.stderr.write(f"tiny_model: {error}\n")
        return 2
    sys.stdout.write(f"{asked.folder}: {'made' if made else 'already there'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
