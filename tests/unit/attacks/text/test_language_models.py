import importlib.util

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sparse_core.attacks.text import build_text_attack
from sparse_core.attacks.text.codec import learned_codec
from sparse_core.attacks.text.models import pretrained_language_model
from sparse_core.errors import SparseError

SHORT = {"epochs": 3, "batch_size": 16, "candidates": 2, "max_tokens": 16, "pretrained_learning_rate": 3e-3}


@pytest.fixture(scope="module")
def models_on_disk(tmp_path_factory, sentences):
    """Untrained models of real architectures, with a tokenizer each, as save_pretrained writes them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        sentences[:1000], trainers.BpeTrainer(vocab_size=600, special_tokens=["<s>", "</s>"], show_progress=False)
    )
    torch.manual_seed(0)
    size = tokenizer.get_vocab_size()
    llama = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    gpt2 = GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=2)
    built = {"llama": LlamaForCausalLM(llama), "gpt2": GPT2LMHeadModel(gpt2)}
    # As GPT-2's own tokenizer, the second has no start.
    special = {"llama": {"bos_token": "<s>", "eos_token": "</s>"}, "gpt2": {"eos_token": "</s>"}}
    folders = {}
    for name, model in built.items():
        folders[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(folders[name])
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special[name]).save_pretrained(folders[name])
    return folders


def fitted(clinic, folder, attack="inversion", **options):
    rows = clinic.split.train[:160]
    return build_text_attack(attack, model=str(folder), **(SHORT | options)).fit(
        clinic.vectors[rows],
        [clinic.texts[row] for row in rows],
        unprotected=clinic.vectors[rows],
        public=clinic.public.without_noise(),
        encode=clinic.encode,
        seed=0,
    )


@pytest.mark.parametrize(("name", "attack"), [("llama", "inversion"), ("gpt2", "inversion"), ("llama", "vec2text")])
def test_any_causal_language_model_on_disk_is_trained_as_decoder(name, attack, models_on_disk, clinic):
    trained = fitted(clinic, models_on_disk[name], attack)
    losses = trained.log.validation_losses
    assert losses[-1] < losses[0] < np.log(600)
    found = trained.reconstruct(clinic.vectors[clinic.split.test[:5]], seed=0)
    assert len(found.texts) == 5 and any(found.texts)


def test_low_rank_updates_leave_the_models_own_weights_as_they_were(models_on_disk, clinic):
    before = LlamaForCausalLM.from_pretrained(models_on_disk["llama"]).state_dict()
    trained = fitted(clinic, models_on_disk["llama"], lora_rank=4)
    after = {name: value for name, value in trained._decoder.language_model.named_parameters()}
    for name, value in before.items():
        own = [v for n, v in after.items() if n.removeprefix("base_model.model.").replace(".base_layer", "") == name]
        assert not own or torch.equal(own[0], value), name
    updates = [value for name, value in after.items() if "lora_B" in name]
    assert len(updates) == 14
    assert all(value.abs().max() > 0 for value in updates)
    assert trained.log.validation_losses[-1] < trained.log.validation_losses[0]


def test_a_missing_package_or_model_is_told_before_training(monkeypatch, models_on_disk, clinic, tmp_path):
    with pytest.raises(SparseError, match=r"attack model .*nothing.* cannot be loaded .*; give a folder or a hub id"):
        fitted(clinic, tmp_path / "nothing")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "sparse_core.attacks.text.models.find_spec", lambda name: None if name == "peft" else find(name)
    )
    with pytest.raises(SparseError, match=r"needs the package peft; pip install 'sparse-embeddings\[lora\]'"):
        build_text_attack("inversion", model=str(models_on_disk["llama"]), lora_rank=4).check()


def test_a_pretrained_model_keeps_its_own_tokens(models_on_disk):
    for name, start in (("llama", 0), ("gpt2", 1)):
        _, codec = pretrained_language_model(str(models_on_disk[name]), lora_rank=0)
        assert (codec.start, codec.end) == (start, 1)
        assert codec.decode(codec.encode(["Chest pain."])) == ["Chest pain."]


def test_a_learned_vocabulary_spells_out_what_it_never_saw(sentences):
    codec = learned_codec(sentences[:500], size=1500)
    assert codec.decode(codec.encode(["The PATIENT is 76, naïve"])) == ["the patient is 76, naïve"]
    patient, rare = codec.encode(["patient", "xylophonist"])
    assert len(patient) == 1 < len(rare)
    assert not {codec.start, codec.end} & set(patient + rare)


def test_a_learned_vocabulary_of_the_same_texts_is_the_same(sentences):
    first, second = (learned_codec(sentences[:500], size=800) for _ in range(2))
    assert first.encode(sentences[:50]) == second.encode(sentences[:50])
