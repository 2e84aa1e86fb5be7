"""Texts as token ids and back, for decoders trained from scratch and for language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_START, _END = "<start>", "<end>"


@dataclass(frozen=True)
class Codec:
    """How a decoder reads and writes.

    Parameters
    ----------
    encode : callable
        From a list of texts to a list of lists of ids, without start and end.
    decode : callable
        From a list of lists of ids to texts.
    start, end : int
        Ids that open and close a text.
    size : int
        Number of ids.
    """

    encode: Callable[[Sequence[str]], list[list[int]]]
    decode: Callable[[Sequence[Sequence[int]]], list[str]]
    start: int
    end: int
    size: int


def learned_codec(texts: Sequence[str], *, size: int) -> Codec:
    """Byte-pair encoding (Sennrich et al. 2016) of the attacker's own texts, case folded.

    The frequent words of the corpus, concept tokens among them, become one id each, anything else is spelt out. An
    encoder's own vocabulary covers a language instead: more ids to choose from, and more of them to a word.

    Parameters
    ----------
    texts : sequence of str
    size : int
        Most ids.

    Returns
    -------
    Codec
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[_START, _END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Codec(
        encode=lambda some: [found.ids for found in tokenizer.encode_batch_fast(list(some))],
        decode=lambda some: [text.strip() for text in tokenizer.decode_batch([list(ids) for ids in some])],
        start=tokenizer.token_to_id(_START),
        end=tokenizer.token_to_id(_END),
        size=tokenizer.get_vocab_size(),
    )


def model_codec(tokenizer) -> Codec:
    """A language model's own tokenizer.

    Parameters
    ----------
    tokenizer : transformers tokenizer

    Returns
    -------
    Codec
        Texts open with the model's own start, or with its end where it has none (GPT-2).
    """
    end = tokenizer.eos_token_id
    start = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id

    def encode(some: Sequence[str]) -> list[list[int]]:
        return tokenizer(list(some), add_special_tokens=False)["input_ids"] if len(some) else []

    return Codec(
        encode=encode,
        decode=lambda some: [text.strip() for text in tokenizer.batch_decode(some, skip_special_tokens=True)],
        start=start,
        end=end,
        size=len(tokenizer),
    )
