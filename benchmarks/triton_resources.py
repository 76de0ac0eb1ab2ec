"""Compiles the attention kernels ahead of time, without a GPU, and records registers, spills and shared memory.

    python benchmarks/triton_resources.py              every production variant -> results/triton_resources.json
    python benchmarks/triton_resources.py --sample     a few of them, printed as JSON (the tests do that)

A spill is any stack frame or local memory that ``cuobjdump --dump-resource-usage`` (in Triton's package) reports.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from vlm_engine.attention import triton_kernels  # noqa: E402
from vlm_engine.attention.triton_backend import JOIN_SPLITS, JOIN_WARPS, WRITE_TOKENS, WRITE_WARPS  # noqa: E402
from vlm_engine.attention.triton_work import Tile, pad_head, tuning_for  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "triton_resources.json"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SHARED_LIMIT = {90: 227 * 1024, 89: 99 * 1024, 87: 163 * 1024}
"""Bytes of shared memory that one program can have, by target (CUDA C++ programming guide, compute capabilities)."""
ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}
HEAD_DIMS = (64, 80, 96, 128)
GROUPS = (1, 2, 3, 4, 7)
KV_HEADS = 4
COLUMNS = ("target", "kernel", "dtype", "head_dim", "group", "block_size", "rows", "keys", "warps", "stages")
MEASURED = ("registers", "stack", "local", "shared")


@dataclass(frozen=True)
class Variant:
    """One kernel as the backend would have it compiled."""

    target: int
    kernel: str
    dtype: str
    head_dim: int
    group: int
    block_size: int
    tile: Tile

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from the others, in the order of COLUMNS."""
        tile = self.tile
        place = (self.target, self.kernel, self.dtype, self.head_dim, self.group, self.block_size)
        return (*place, tile.rows, tile.keys, tile.warps, tile.stages)


def variants() -> Iterator[Variant]:
    """What production runs: both tiles of each target for each 16-bit dtype, head size and group; samples of the rest
    (float32, larger pages, the two small kernels)."""
    for target in SHARED_LIMIT:
        for dtype, itemsize in ITEMSIZE.items():
            for head_dim in HEAD_DIMS if itemsize == 2 else (64, 128):
                tuning = tuning_for((target // 10, target % 10), head_dim, itemsize, processors=1)
                for tile in (tuning.small, tuning.large):
                    for group in GROUPS if itemsize == 2 else (1, 4):
                        yield Variant(target, "attend", dtype, head_dim, group, 16, tile)
                    for block_size in (32, 64) if (dtype, head_dim) == ("bf16", 128) else ():
                        yield Variant(target, "attend", dtype, head_dim, 2, block_size, tile)
                    if head_dim in (80, 128):
                        joining = Tile(tile.rows, 0, JOIN_WARPS, 3)
                        yield Variant(target, "join_splits", dtype, head_dim, 3, 16, joining)
                if head_dim in (80, 128):
                    yield Variant(target, "write_kv", dtype, head_dim, 1, 16, Tile(0, 0, WRITE_WARPS, 3))


def sample() -> list[Variant]:
    """The heaviest of each target, and one of each other kernel."""

    def wanted(v: Variant) -> bool:
        heaviest = v.kernel == "attend" and (v.dtype, v.head_dim, v.group, v.block_size) == ("bf16", 128, 7, 16)
        fp16 = v.kernel == "attend" and (v.target, v.dtype, v.head_dim, v.group) == (90, "fp16", 64, 3)
        other = v.kernel != "attend" and (v.target, v.dtype, v.head_dim) == (90, "fp16", 80)
        return heaviest or fp16 or other

    return [v for v in variants() if wanted(v)]


def measure(variant: Variant) -> dict[str, int]:
    """Compiles a variant: registers a thread, bytes of stack, local and shared memory."""
    function = getattr(triton_kernels, variant.kernel)
    constants = {name: value for name, value in _constants(variant).items() if name in function.arg_names}
    signature = {name: "constexpr" if name in constants else _type(name, variant) for name in function.arg_names}
    # As at run time: the backend's pointers and strides are multiples of 16 (bytes, elements), `tokens` is anything.
    aligned = [["tt.divisibility", 16]]
    attributes = {
        (i,): aligned
        for i, name in enumerate(function.arg_names)
        if signature[name].startswith("*") or name.endswith("stride")
    }
    compiled = triton.compile(
        ASTSource(function, signature, constants, attributes),
        target=GPUTarget("cuda", variant.target, 32),
        options={"num_warps": variant.tile.warps, "num_stages": variant.tile.stages},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", file.name]
        dump = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = next(line for line in dump.splitlines() if "REG:" in line)
    fields = dict(part.split(":", 1) for part in usage.split() if part.count(":") == 1)
    return {
        "registers": int(fields["REG"]),
        "stack": int(fields["STACK"]),
        "local": int(fields["LOCAL"]),
        "shared": compiled.metadata.shared,
    }


def kernels_digest() -> str:
    """SHA-256 of the kernels without comments and docstrings."""
    tree = ast.parse(Path(triton_kernels.__file__).read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
            node.body = kept or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def _constants(variant: Variant) -> dict[str, int]:
    return {
        "GROUP": variant.group,
        "KV_HEADS": KV_HEADS,
        "HEAD_DIM": variant.head_dim,
        "HEAD_PAD": pad_head(variant.head_dim),
        "BLOCK_SIZE": variant.block_size,
        "ROWS": variant.tile.rows,
        "KEYS": variant.tile.keys,
        "TOKENS": WRITE_TOKENS,
        "SPLITS": JOIN_SPLITS,
    }


def _type(name: str, variant: Variant) -> str:
    if name in ("tables", "items", "joins"):
        return "*i32"
    if name.startswith("partial"):
        return "*fp32"
    if name == "slots":
        return "*i64"
    if name == "scale":
        return "fp32"
    return "i32" if name.endswith("stride") or name == "tokens" else f"*{variant.dtype}"


def main() -> int:
    """0 when nothing spills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true", help="a few variants, printed")
    arguments = parser.parse_args()
    rows = []
    for variant in sample() if arguments.sample else variants():
        usage = measure(variant)
        rows.append([*variant.key, *(usage[name] for name in MEASURED)])
        if not arguments.sample:
            print(*rows[-1], flush=True)
    report = {"triton": triton.__version__, "kernels": kernels_digest(), "columns": [*COLUMNS, *MEASURED], "rows": rows}
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in report.items() if name != "rows")
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{\n{text},\n"rows": [\n{lines}\n]\n}}\n'
    if arguments.sample:
        print(text)
    else:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(text)
    return int(any(row[-3] or row[-2] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
