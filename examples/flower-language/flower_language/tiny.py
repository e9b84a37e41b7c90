"""A causal language model made on the spot: four blocks, taught public sentences for a few seconds.

Idea     the interface is that of Hugging Face models (``config.hidden_size``, ``forward(input_ids,
         labels)`` with a ``loss``), so that the app does not know the difference. Public sentences
         and clients' sentences come from two grammars over the same words: a client writes
         changelogs, the public text is manuals. Both sides make the same model from the same seed.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

WIDTH = 64
BLOCKS = 4
HEADS = 4
LENGTH = 48
SEED = 44
STEPS = 150


def listed(words: str) -> list[str]:
    """Return words with spaces between them as a list."""
    return words.split()


ACTIONS = listed("add drop fix bump update remove rename split")
THINGS = listed(
    "file option page patch build field test manual version library script warning binary source"
)
KINDS = listed("new old broken missing upstream")
LINKS = listed("for from to in of with")
VERBS = listed("reads writes prints returns")
WORDS = ["<end>", *ACTIONS, *THINGS, *KINDS, *LINKS, *VERBS]
WORDS += listed("the if is not then see close bug number")
PLACE = {word: place for place, word in enumerate(WORDS)}


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.input_layernorm = nn.LayerNorm(WIDTH)
        self.qkv_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.post_attention_layernorm = nn.LayerNorm(WIDTH)
        self.up_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states after this block, (batch, time, WIDTH)."""
        count, length, _ = states.shape
        parts = self.qkv_proj(self.input_layernorm(states)).view(
            count, length, 3, HEADS, WIDTH // HEADS
        )
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.o_proj(mixed.transpose(1, 2).reshape(count, length, WIDTH))
        inner = nn.functional.gelu(self.up_proj(self.post_attention_layernorm(states)))
        after: torch.Tensor = states + self.down_proj(inner)
        return after


class TinyCausalLM(nn.Module):
    """The model; ``labels`` give the mean loss of the next tokens."""

    def __init__(self) -> None:
        """Make embeddings, blocks and the last norm; the head is the embedding."""
        super().__init__()
        self.config = SimpleNamespace(hidden_size=WIDTH, vocab_size=len(WORDS))
        self.embed_tokens = nn.Embedding(len(WORDS), WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        """Return ``logits``, and ``loss`` where there are labels."""
        states = self.embed_tokens(input_ids) + self.places.weight[: input_ids.shape[1]]
        for layer in self.layers:
            states = layer(states)
        logits = self.norm(states) @ self.embed_tokens.weight.T / WIDTH**0.5
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            )
        return SimpleNamespace(logits=logits, loss=loss)


@lru_cache(maxsize=1)
def taught() -> TinyCausalLM:
    """Return the model after training on public sentences.

    It is the same in every process on one kind of machine.
    """
    torch.manual_seed(SEED)
    model = TinyCausalLM()
    rng = np.random.default_rng(SEED)
    teacher = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        ids = rows(public_sentences(rng, 400), 16)
        teacher.zero_grad()
        model(ids, labels=ids).loss.backward()
        teacher.step()
    return model.eval()


def public_sentences(rng: np.random.Generator, words: int) -> list[str]:
    """Return sentences of manuals; one in ten is a change, so that all words are known."""
    text: list[str] = []
    while len(text) < words:
        thing, other = rng.choice(THINGS, 2)
        if rng.random() < 0.1:
            text += change(rng, str(rng.choice(ACTIONS)), str(rng.choice(KINDS)))
        elif rng.random() < 0.5:
            text += ["the", thing, rng.choice(VERBS), "the", rng.choice(KINDS), other, "<end>"]
        else:
            text += [
                "if",
                "the",
                thing,
                "is",
                "not",
                rng.choice(KINDS),
                "then",
                "see",
                "the",
                other,
                "<end>",
            ]
    return [str(word) for word in text]


def author_sentences(author: int, words: int) -> list[str]:
    """Return an author's text: changes, with a liking for two actions and one kind of thing."""
    rng = np.random.default_rng((SEED, author))
    liked = rng.choice(ACTIONS, 2, replace=False)
    kind = str(rng.choice(KINDS))
    text: list[str] = []
    while len(text) < words:
        action = str(rng.choice(liked) if rng.random() < 0.6 else rng.choice(ACTIONS))
        text += change(rng, action, kind if rng.random() < 0.5 else str(rng.choice(KINDS)))
    return text


def change(rng: np.random.Generator, action: str, kind: str) -> list[str]:
    """Return one line of a changelog."""
    thing, other = (str(word) for word in rng.choice(THINGS, 2))
    words = [action, kind, thing]
    words += [str(rng.choice(LINKS)), other] if rng.random() < 0.5 else []
    words += ["close", "bug", "number"] if rng.random() < 0.3 else []
    return [*words, "<end>"]


def rows(words: list[str], most: int) -> torch.Tensor:
    """Return rows of LENGTH tokens, at most so many; what is left over is dropped."""
    ids = np.array([PLACE[word] for word in words])
    count = min(most, ids.size // LENGTH)
    return torch.from_numpy(ids[: count * LENGTH].reshape(count, LENGTH))
