"""The language models a decoder can be made of: a small one from scratch, or any causal one of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from sparse_core.attacks.text.codec import Codec, learned_codec, model_codec
from sparse_core.errors import SparseError


def small_language_model(
    texts: Sequence[str], *, vocabulary: int, width: int, layers: int, dropout: float, positions: int
) -> tuple[object, Codec]:
    """An untrained transformer, and a vocabulary of the attacker's own texts.

    Parameters
    ----------
    texts : sequence of str
    vocabulary, width, layers : int
    dropout : float
    positions : int
        Most tokens it will see at once.

    Returns
    -------
    transformers causal language model, and Codec
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    codec = learned_codec(texts, size=vocabulary)
    config = GPT2Config(
        vocab_size=codec.size,
        n_positions=positions,
        n_embd=width,
        n_layer=layers,
        n_head=max(1, width // 64),
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=codec.start,
        eos_token_id=codec.end,
    )
    return GPT2LMHeadModel(config), codec


def pretrained_language_model(name: str, *, lora_rank: int) -> tuple[object, Codec]:
    """A causal language model by hub id or folder.

    Parameters
    ----------
    name : str
        Such as "gpt2" or "HuggingFaceTB/SmolLM2-135M".
    lora_rank : int
        Rank of the low-rank updates (Hu et al. 2022) that are trained instead of the weights; 0 trains the weights.

    Returns
    -------
    transformers causal language model, and Codec

    Raises
    ------
    SparseError
        If it cannot be loaded, or peft is missing.
    """
    check_lora(lora_rank)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SparseError(
            f"attack model {name!r} cannot be loaded as a causal language model of transformers ({reason}); "
            "give a folder or a hub id"
        ) from None
    if tokenizer.eos_token_id is None:
        raise SparseError(f"attack model {name!r} has no token that ends a text, so it cannot learn where to stop")
    if lora_rank:
        from peft import LoraConfig, get_peft_model

        settings = LoraConfig(r=lora_rank, lora_alpha=2 * lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, settings)
    return model, model_codec(tokenizer)


def check_lora(lora_rank: int) -> None:
    """Refuse to start where peft is needed and missing.

    Parameters
    ----------
    lora_rank : int

    Raises
    ------
    SparseError
    """
    if lora_rank and find_spec("peft") is None:
        raise SparseError(
            f"lora_rank={lora_rank} needs the package peft; pip install 'sparse-embeddings[lora]', or set it to 0"
        )
