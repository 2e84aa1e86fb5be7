"""Hashes of everything in a loaded model that turns a text into a vector.

They are taken from the model as it was loaded, not from its files: an edit that changes nothing (a README, an order of
keys, where the model lies) leaves them alone, and one that changes anything changes them, whichever file it is in.

What they cannot see is the code of installed packages: a new version of transformers may compute other last bits, or
fill in another default. That is what the noise's second wall is for (`sparse_core.noise`).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import tempfile
from pathlib import Path

_FACTS = {
    "_name_or_path", "base_model_name_or_path", "transformers_version", "architectures", "auto_map", "dtype",
    "torch_dtype", "torchscript", "__version__",
}  # fmt: skip
"""Of configurations: where a model lies, what wrote it, names of classes that are hashed themselves, and the precision
of the weights, which `hash_weights` tells."""
_KNOWN = {"torch", "transformers", "sentence_transformers", *sys.stdlib_module_names}
_WEIGHTS = (".safetensors", ".bin")
_CONFIGURATIONS = ("config.json", "config_sentence_transformers.json")


def hash_weights(model) -> str:
    """SHA-256 over every parameter and buffer, by name, type and shape."""
    import torch

    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def hash_architecture(model) -> str:
    """SHA-256 over what a SentenceTransformer does with its weights.

    The class and configuration of each of its modules and, below them, of each transformer and adapter; and the source
    of every class that belongs to none of the libraries, such as a model's own code.
    """
    from transformers import PreTrainedModel

    parts, sources = [], set()
    for place, module in model.named_modules():
        part = {}
        if hasattr(module, "get_config_dict"):
            part["module"] = module.get_config_dict()
        if isinstance(module, PreTrainedModel):
            part["transformer"] = _decisive(module.config.to_diff_dict())
            # Not in the dictionary, and decides how attention is summed.
            part["attention"] = getattr(module.config, "_attn_implementation", None)
        if hasattr(module, "peft_config"):
            part["adapters"] = {name: _decisive(config.to_dict()) for name, config in module.peft_config.items()}
        for kind in type(module).__mro__[:-1]:
            if kind.__module__.partition(".")[0] not in _KNOWN:
                sources.add(f"{kind.__qualname__} {_hash_source(kind)}")
        if part or "." not in place:
            parts.append([place, type(module).__qualname__, part])
    return _hash_json({"parts": parts, "sources": sources})


def hash_tokenizer(model) -> str:
    """SHA-256 over what turns a text into token ids.

    Of a fast tokenizer what its library serialises: normalizer, splitting, vocabulary, added and special tokens,
    post-processor. Padding and cutting are the encoder's own (`EncoderSpec`), but for the token that pads. A model
    without one is hashed as `SentenceTransformer.save` writes it, weights excepted: vocabularies, word lists, prompts.
    """
    if not has_fast_tokenizer(model):
        return _hash_saved(model)
    serialized = json.loads(model.tokenizer.backend_tokenizer.to_str())
    return _hash_json(serialized | {"padding": model.tokenizer.pad_token_id, "truncation": None})


def has_fast_tokenizer(model) -> bool:
    """Whether the model is a transformer with a tokenizer of the library ``tokenizers``."""
    return hasattr(model[0], "auto_model") and getattr(getattr(model, "tokenizer", None), "is_fast", False)


def _hash_saved(model) -> str:
    with tempfile.TemporaryDirectory(prefix="sparse-encoder-") as folder:
        model.save(folder, create_model_card=False)
        files = {}
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and path.suffix not in _WEIGHTS:
                content = path.read_bytes()
                if path.name in _CONFIGURATIONS:
                    content = _hash_json(_decisive(json.loads(content))).encode()
                files[path.relative_to(folder).as_posix()] = hashlib.sha256(content).hexdigest()
    return _hash_json(files)


def _hash_source(kind: type) -> str | None:
    try:
        return hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return None


def _decisive(value):
    """A configuration without what is only told in it."""
    if isinstance(value, dict):
        return {str(name): _decisive(one) for name, one in value.items() if name not in _FACTS}
    return [_decisive(one) for one in value] if isinstance(value, list | tuple) else value


def _hash_json(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value):
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    # Of a function or class: str would tell where in memory it is.
    return getattr(value, "__qualname__", None) or str(value)
