"""Time of one level on a GPU by its width and by the shape of its launch, for the table of shapes in ops/level_gru.

    python benchmarks/level_shapes.py --widths 300,1000,8000,32000

A chain of levels of equal width is computed forward and backward, once with all levels in one launch with barriers
and once with a launch per level, captured as a CUDA graph as training does. A shape is rows per block, programs per
multiprocessor and warps; a cooperative launch that does not fit is shown as "-".
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
import torch
from gpu_limits import timed
from machine_info import describe_machine

from dynedge.ops.level_gru import triton as levels_op
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule

LEVELS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=64, help="Width of states.")
    parser.add_argument("--widths", default="300,1000,2000,8000,32000", help="Rows of a level's side.")
    parser.add_argument("--rows", default="16,32,64", help="Rows per block.")
    parser.add_argument("--programs", default="1,2", help="Programs per multiprocessor.")
    parser.add_argument("--warps", default="4,8", help="Warps per program.")
    args = parser.parse_args()
    print(
        f"{torch.cuda.get_device_name()}, {describe_machine()}; torch {torch.__version__}, bfloat16, d = {args.dim}"
    )
    print("rows/block  programs  warps  launch     " + "  ".join(f"{w:>7} f     b" for w in args.widths.split(",")))
    chains = [chain(int(width)) for width in args.widths.split(",")]
    shapes = product(*([int(part) for part in text.split(",")] for text in (args.rows, args.programs, args.warps)))
    for rows, programs, warps in shapes:
        for one_launch in (True, False):
            shape = levels_op.LaunchShape(rows, programs, warps)
            cells = [measure(levels, shape, one_launch, args.dim) for levels in chains]
            how = "barriers" if one_launch else "per level"
            print(f"{rows:>10}  {programs:>8}  {warps:>5}  {how:9}  " + "   ".join(cells), flush=True)


def chain(width: int) -> levels_op.Levels:
    """Levels in which every row's parents are in the level before, in another order."""
    draw = np.random.default_rng(0)
    users, items = (np.concatenate([draw.permutation(width) for _ in range(LEVELS)]).astype(np.int32) for _ in "ab")
    linker = Linker(np.zeros(width, bool), np.zeros(width, bool))
    return levels_op.Levels.of(build_schedule(users, items, linker(users, items), np.zeros(0, np.int64)), "cuda")


def measure(levels: levels_op.Levels, shape: levels_op.LaunchShape, one_launch: bool, d: int) -> str:
    """Microseconds per level, forward and backward."""
    count = (len(levels.blocks) - 1) // 2
    width = int((levels.blocks[1:] - levels.blocks[:-1]).max())
    runs = [(0, count, width)] if one_launch else [(level, level + 1, width) for level in range(count)]
    levels = levels_op.Levels(**{**vars(levels), "runs": runs})
    levels_op.SHAPES = dict.fromkeys(levels_op.SHAPES, (shape, shape))
    written = len(levels.parents)
    sizes = (levels.first_written, d), (written, 3 * d), (2, 3 * d, d), (2, 3 * d, d), (2, 3 * d)
    roots, pre, *weights = (0.1 * torch.randn(size, device="cuda") for size in sizes)
    source = torch.arange(written, dtype=torch.int32, device="cuda")
    dtype = torch.bfloat16
    tables = [roots.new_empty(levels.first_written + written, d), pre.to(dtype)]
    gates, parent_states = (roots.new_empty((written, k * d), dtype=dtype) for k in (4, 2))
    tables[0][: len(roots)] = roots
    own, other = (weight.to(dtype) for weight in weights[:2])
    lists = levels.parents, source, levels.blocks, levels.offsets
    grad, parent_grads = torch.randn(written, d, device="cuda"), roots.new_empty(written, 2 * d)
    gate_grads, first = torch.empty_like(gates), levels.first_written

    def forward() -> None:
        tensors = *tables, gates, parent_states, own, other, weights[2]
        levels_op._launch("forward", runs, d, dtype, first, *tensors, *lists)

    def backward() -> None:
        tensors = grad, parent_grads, gates, parent_states, gate_grads, own, other
        back = levels.children, levels.blocks, levels.offsets
        levels_op._launch("backward", runs[::-1], d, dtype, first, *tensors, *back)

    return " ".join(_replayed(work, count) for work in (forward, backward))


def _replayed(work: object, count: int) -> str:
    try:
        work()  # type: ignore[operator]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()  # type: ignore[operator]
        return f"{1e6 * timed(graph.replay, 9) / count:7.1f}"
    except Exception:  # Triton's errors of a launch that does not fit have no common class
        torch.cuda.synchronize()
        return f"{'-':>7}"


if __name__ == "__main__":
    main()
