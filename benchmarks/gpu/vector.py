"""Rotation and expansion on a GPU: right first, then beside a copy.

Idea     every result is compared with the CPU's, bit for bit, then timed as in `timing.py`.
Rows     transform = all stages in place; normals = 10,000 seeds of 1,024 to memory; payloads = 10,000 seeds and
         nonces of 1,024 added into 2^20 sums; copy = as many float32 or float64.

    PYTHONPATH=src python benchmarks/gpu/vector.py
"""

from __future__ import annotations

import numpy as np
import torch
from timing import seconds

from quietbit.kernel.device_expand import accumulate_tensors, normals_tensor
from quietbit.kernel.expand import accumulate, normals
from quietbit.kernel.transform import hadamard_

K, SIZE, PAYLOADS = 1024, 1 << 20, 10_000


def check(name: str, fine: bool) -> None:
    print("right" if fine else "WRONG", name, flush=True)


def transforms() -> None:
    for power in (1, 5, 12, 13, 19, 20, 21, 24, 27):
        for kind in (torch.float32, torch.float64):
            tensor = torch.randn(1 << power, dtype=kind, device="cuda")
            if power <= 21:
                expected = hadamard_(tensor.cpu().numpy().copy())
                check(
                    f"transform 2^{power} {kind}",
                    hadamard_(tensor.clone()).cpu().numpy().tobytes() == expected.tobytes(),
                )
            if power >= 20:
                other = torch.empty_like(tensor)
                copy = seconds(lambda a=other, b=tensor: a.copy_(b))  # type: ignore[misc]
                whole = seconds(lambda b=tensor: hadamard_(b), graph=False)  # type: ignore[misc]
                print(f"  2^{power} {kind}: {1e6 * whole:.0f} us, {whole / copy:.1f} copies", flush=True)


def expansion() -> None:
    rng = np.random.default_rng(0)
    seeds = rng.integers(0, 256, (PAYLOADS, 16), dtype=np.uint8)
    nonces = rng.integers(0, 256, (PAYLOADS, 8), dtype=np.uint8)
    on_device = torch.from_numpy(seeds).cuda(), torch.from_numpy(nonces).cuda()
    some = np.stack([normals(key.tobytes(), 1000) for key in seeds[:50]])
    check("normals", normals_tensor(on_device[0][:50], 1000).cpu().numpy().tobytes() == some.tobytes())
    expected, total = np.zeros(SIZE, np.int64), torch.zeros(SIZE, dtype=torch.int64, device="cuda")
    accumulate(nonces, seeds, expected, count=K, shift=40)
    accumulate_tensors(on_device[1], on_device[0], total, count=K, shift=40)
    check("sums of 10,000 payloads", bool(np.array_equal(total.cpu().numpy(), expected)))
    expand = seconds(lambda: normals_tensor(on_device[0], K), graph=False)
    add = seconds(lambda: accumulate_tensors(on_device[1], on_device[0], total, count=K, shift=40), graph=False)
    print(f"  normals of 10,000 seeds {1e3 * expand:.3f} ms, payloads {1e3 * add:.3f} ms", flush=True)


if __name__ == "__main__":
    transforms()
    expansion()
