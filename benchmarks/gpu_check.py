"""Check and time the GPU core on a real GPU, at full size, in one run.

    python benchmarks/gpu_check.py            # every check, then the timings (about two minutes on an H200)
    python benchmarks/gpu_check.py --no-bench # the checks alone
    compute-sanitizer --tool memcheck  python benchmarks/gpu_check.py --sanitize
    compute-sanitizer --tool racecheck python benchmarks/gpu_check.py --sanitize
    python benchmarks/gpu_check.py --sanitize 0/12   # the first of twelve parts, which may run side by side

Needs the extra "gpu" and a CUDA device. It exits with 1 at the first difference.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from numpy.typing import NDArray

from csf_tool import (
    CsfScales,
    ScaleLayout,
    compress_mxfp4_scales,
    compress_nvfp4_scales,
    decompress_mxfp4_csf_scales,
    decompress_nvfp4_csf_scales,
    prepare_csf_scales,
)
from csf_tool.bench.rivals import torch_decode
from csf_tool.bench.run import BenchOptions, run_bench
from csf_tool.bench.workloads import WORKLOADS, Workload, make_scales, make_streams, places_of
from csf_tool.codec import reference
from csf_tool.codec.formats import MAX_ELEMENTS, MXFP4, NVFP4, POSITION_BITS
from csf_tool.documents.bench import bench_document
from csf_tool.gpu.layouts import DenseLayout
from csf_tool.gpu.streams import CsfStreams
from csf_tool.report.bench import bench_report
from csf_tool.report.console import print_out
from tests.swizzled import swizzle

DEVICE = torch.device("cuda")
POISON = 0xA5
DECOMPRESS = {NVFP4: decompress_nvfp4_csf_scales, MXFP4: decompress_mxfp4_csf_scales}
COMPRESS = {NVFP4: compress_nvfp4_scales, MXFP4: compress_mxfp4_scales}
GATE = WORKLOADS[0]

Bytes = NDArray[np.uint8]


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Compare bits, so that NaN equals itself and -0 is not 0."""
    if got.numel() != want.numel():
        raise SystemExit(f"FAILED: {what}: {got.numel()} elements, not {want.numel()}")
    if got.numel() == 0:
        return
    got, want = got.reshape(-1).view(torch.uint8), want.reshape(-1).view(torch.uint8)
    if not torch.equal(got, want):
        raise SystemExit(f"FAILED: {what}: {int((got != want).sum())} bytes differ")


def prepared(streams: CsfStreams) -> CsfScales:
    """The stack, checked and prepared as the public functions do it."""
    s = streams
    return prepare_csf_scales(s.format, s.fixed, s.exceptions, s.counts, rows=s.rows, cols=s.cols)


def numpy_decode(streams: CsfStreams) -> Bytes:
    """The dense bytes by the reference, plane by plane."""
    rows, cols = streams.rows, streams.cols
    out = np.empty((streams.experts, rows, cols), np.uint8)
    for plane, (fixed, words) in enumerate(streams.planes()):
        own = words.view(torch.int32).cpu().numpy().view(np.uint32)
        out[plane] = reference.decode(streams.format, fixed.cpu().numpy(), own, rows=rows, cols=cols)
    return out


def adversarial(work: Workload) -> dict[str, CsfStreams]:
    """Streams that no encoder would write on average: wild stacks, wild planes, ends and edges."""
    calm = replace(work, exception_share=0.0)
    last = work.rows * work.cols - 1
    wild = make_streams(replace(work, experts=1, exception_share=1.0), DEVICE)
    ends = torch.tensor([0, last], device=DEVICE)
    base = make_streams(calm, DEVICE)

    def with_places(places: torch.Tensor) -> CsfStreams:
        """Exceptions of value 0x7F (an E4M3 NaN) at these places of the stack."""
        plane = work.rows * work.cols
        counts = torch.bincount(places // plane, minlength=work.experts).tolist()
        words = (places % plane | 0x7F << POSITION_BITS).to(torch.int32)
        return CsfStreams.of(work.format, base.fixed, words, counts, work.rows, work.cols)

    plane_starts = torch.arange(work.experts, device=DEVICE)[:, None] * (last + 1)
    middle = work.experts // 2
    return {
        "no exceptions": base,
        "27% exceptions": make_streams(replace(work, exception_share=0.27), DEVICE),
        "all exceptions": make_streams(replace(work, exception_share=1.0), DEVICE),
        "first and last scale of every plane": with_places((plane_starts + ends).view(-1)),
        "one wild plane": with_places(middle * (last + 1) + places_of(wild)),
        "whole rows": with_places((plane_starts + torch.arange(3 * work.cols, device=DEVICE)).view(-1)),
    }


def check_streams(work: Workload, name: str, streams: CsfStreams) -> None:
    want = numpy_decode(streams)
    scales = prepared(streams)
    layouts: dict[DenseLayout, Bytes] = {"linear": want, "swizzled": swizzle(want)}
    for layout, dense in layouts.items():
        expected = torch.from_numpy(dense).to(DEVICE)
        for offset in (0, 1, 4):
            out = torch.full((expected.numel() + offset + 64,), POISON, dtype=torch.uint8, device=DEVICE)
            got = DECOMPRESS[work.format](scales, out=out[offset:], layout=layout)
            same(got, expected, f"{work.name}, {name}, {layout}, offset {offset}")
            edges = torch.cat([out[:offset], out[offset + expected.numel() :]])
            same(edges, torch.full_like(edges, POISON), f"{work.name}, {name}: bytes around the workspace")


def check_routing(work: Workload) -> None:
    """Skipped experts are untouched, for routings from none to all, in both integer types."""
    streams = make_streams(work, DEVICE)
    scales, want = prepared(streams), torch_decode(streams)
    random = torch.Generator().manual_seed(0)
    for share in (0.0, 8 / 512, 0.5, 0.97, 1.0):
        rows = (torch.rand(work.experts, generator=random) < share).to(torch.int64) * 3
        for dtype in (torch.int32, torch.int64):
            start = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)]).to(DEVICE, dtype)
            out = torch.full((work.dense_bytes,), POISON, dtype=torch.uint8, device=DEVICE)
            DECOMPRESS[work.format](scales, out=out, expert_start=start)
            active = (rows > 0).to(DEVICE)[:, None, None]
            same(out, torch.where(active, want, POISON), f"{work.name}, routed to {share:.0%}")
            check_choices(work, scales, rows, torch.where(active, want, POISON), dtype)


def check_choices(
    work: Workload, scales: CsfScales, rows: torch.Tensor, want: torch.Tensor, dtype: torch.dtype
) -> None:
    """The same routing as the chosen experts, in disorder, with experts of other ranks, at an odd address."""
    offset = 1000
    strays = torch.tensor([-1, 0, offset - 1, offset + work.experts, 2**31 - 1])
    chosen = torch.cat([torch.arange(work.experts).repeat_interleave(rows) + offset, strays])
    chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(1))]
    topk_ids = torch.cat([strays[:1], chosen]).to(DEVICE, dtype)[1:]
    out = torch.full((work.dense_bytes,), POISON, dtype=torch.uint8, device=DEVICE)
    DECOMPRESS[work.format](scales, out=out, topk_ids=topk_ids, expert_offset=offset)
    same(out, want, f"{work.name}, routed by {len(chosen)} choices in {dtype}")


def check_layouts(work: Workload) -> None:
    """Every form with every order of rows and a table, against the same done to whole dense planes."""
    work = replace(work, experts=min(work.experts, 24))
    streams = make_streams(work, DEVICE)
    scales, dense = prepared(streams), torch_decode(streams)
    shuffled = torch.randperm(work.rows, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    table = torch.randperm(256, generator=torch.Generator().manual_seed(3)).to(DEVICE, torch.uint8)
    first, second = dense.chunk(2, 1)
    turns = torch.cat([second, first], 1).view(work.experts, 2, -1, 8, work.cols).transpose(1, 2).reshape(dense.shape)
    orders: list[tuple[dict[str, Any], torch.Tensor]] = [
        ({}, dense),
        ({"swap_halves": True, "interleave": 8}, turns),
        ({"row_order": shuffled}, dense[:, shuffled]),
        ({"table": table}, table[dense.int()]),
    ]
    forms = {"linear": lambda planes: planes, "swizzled": tiled, "marlin": marlin}
    for form, make in forms.items():
        if form == "marlin" and work.rows % 64:
            continue
        for options, planes in orders:
            layout = ScaleLayout(form, **options)  # type: ignore[arg-type]
            for offset in (0, 1):
                out = torch.full((scales.workspace_bytes(layout) + offset,), POISON, dtype=torch.uint8, device=DEVICE)
                got = DECOMPRESS[work.format](scales, out=out[offset:], layout=layout)
                same(got, make(planes), f"{work.name}, {form} {list(options)}, offset {offset}")


def tiled(planes: torch.Tensor) -> torch.Tensor:
    """Planes in the 128x4 layout."""
    return torch.from_numpy(swizzle(planes.cpu().numpy())).to(DEVICE)


def marlin(planes: torch.Tensor) -> torch.Tensor:
    """Planes as vLLM's `marlin_permute_scales` and what follows it give them."""
    order = [i + 8 * j for i in range(8) for j in range(8)]
    columns = planes.transpose(1, 2)
    return columns.reshape(-1, 64)[:, order].reshape(-1, 4)[:, [0, 2, 1, 3]].reshape(columns.shape)


def check_large() -> None:
    """A stack of more than 2 GiB, of planes as large as positions reach: addresses take 64 bits."""
    work = Workload("132 planes of 2**24 scales", NVFP4, 132, MAX_ELEMENTS // 1024, 1024, 0.0005)
    streams = make_streams(work, DEVICE)
    want = torch_decode(streams)
    for routing in (None, torch.arange(work.experts + 1, device=DEVICE)):
        got = decompress_nvfp4_csf_scales(prepared(streams), expert_start=routing)
        same(got, want, work.name)


def check_graph(work: Workload) -> None:
    """A captured decode follows expert_start as it changes between replays."""
    decompress = DECOMPRESS[work.format]
    streams = make_streams(work, DEVICE)
    scales, want = prepared(streams), torch_decode(streams)
    out = torch.empty(work.dense_bytes, dtype=torch.uint8, device=DEVICE)
    start = torch.arange(work.experts + 1, dtype=torch.int32, device=DEVICE)
    decompress(scales, out=out, expert_start=start)  # compiles
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")  # a wait for the GPU raises
    decompress(scales, out=out, expert_start=start)
    torch.cuda.set_sync_debug_mode("default")
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    if allocated:
        raise SystemExit(f"FAILED: decoding into out allocated {allocated} times")
    check_choices_in_graph(decompress, scales, want, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decompress(scales, out=out, expert_start=start)
    for seed in range(5):
        rows = torch.randint(0, 2, (work.experts,), generator=torch.Generator().manual_seed(seed))
        start[1:] = rows.cumsum(0).to(DEVICE)
        out.fill_(POISON)
        graph.replay()
        same(out, torch.where((rows > 0).to(DEVICE)[:, None, None], want, POISON), f"graph replay {seed}")


def check_choices_in_graph(
    decompress: Callable[..., torch.Tensor], scales: CsfScales, want: torch.Tensor, out: torch.Tensor
) -> None:
    """A captured decode follows topk_ids as they change between replays, without an allocation or a wait."""
    chosen = torch.zeros(16, 8, dtype=torch.int32, device=DEVICE)
    decompress(scales, out=out, topk_ids=chosen)  # compiles
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    decompress(scales, out=out, topk_ids=chosen)
    torch.cuda.set_sync_debug_mode("default")
    if torch.cuda.memory_stats()["allocation.all.allocated"] != before:
        raise SystemExit("FAILED: decoding by topk_ids allocated")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decompress(scales, out=out, topk_ids=chosen)
    for seed in range(5):
        ids = torch.randint(-5, scales.experts + 5, chosen.shape, generator=torch.Generator().manual_seed(seed))
        chosen.copy_(ids.to(DEVICE))
        out.fill_(POISON)
        graph.replay()
        active = torch.zeros(scales.experts, dtype=torch.bool)
        active[ids[(ids >= 0) & (ids < scales.experts)]] = True
        same(out, torch.where(active.to(DEVICE)[:, None, None], want, POISON), f"graph replay by topk_ids {seed}")


def check_encoder(work: Workload) -> None:
    """Byte-identical to the reference, on scales of every kind."""
    random = np.random.default_rng(0)
    shape = (6, work.rows, work.cols)
    bell = np.clip(random.normal(110, 6, shape), 0, 255).astype(np.uint8)
    wide = random.integers(0, 256, shape, np.uint8)
    edge = random.choice(np.array([0, 15, 16, 127, 239, 240, 241, 255], np.uint8), shape)
    flat = np.broadcast_to(random.integers(0, 256, (6, work.rows, 1), np.uint8), shape).copy()
    for name, scales in {"bell": bell, "wide": wide, "edge": edge, "flat": flat}.items():
        streams = COMPRESS[work.format](torch.from_numpy(scales).to(DEVICE))
        for plane, (fixed, words) in enumerate(streams.planes()):
            want_fixed, want_words = reference.encode(work.format, scales[plane])
            what = f"encoder, {work.name}, {name}, plane {plane}"
            same(fixed, torch.from_numpy(want_fixed).to(DEVICE), f"{what}: fixed stream")
            same(words, torch.from_numpy(want_words.view(np.int32)).to(DEVICE), f"{what}: exceptions")


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantize(packed: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """NVFP4 weights `[.., n, k / 2]` to bfloat16 `[.., n, k]`: E2M1 value times block scale times global scale."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    values = E2M1.to(packed.device)[codes.int()]
    blocks = scales.view(torch.float8_e4m3fn).float() * global_scale
    return (values * blocks.repeat_interleave(16, -1)).to(torch.bfloat16)


def quantize(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations `[m, k]` to NVFP4: packed codes, and E4M3 block scales."""
    blocks = hidden.float().unflatten(-1, (-1, 16))
    scales = (blocks.abs().amax(-1) / 6).to(torch.float8_e4m3fn)
    scaled = blocks / scales.float().clamp(min=2**-9)[..., None]
    thresholds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=hidden.device)
    codes = torch.bucketize(scaled.abs(), thresholds) + 8 * torch.signbit(scaled)
    codes = codes.to(torch.uint8).flatten(-2)
    return codes[..., ::2] | codes[..., 1::2] << 4, scales


def swiglu(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, packed: torch.Tensor, global_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A gated GEMM and the requantisation of its result, for one expert's weights."""
    w_gate, w_up = dequantize(packed[0], gate, global_scale), dequantize(packed[1], up, global_scale)
    return quantize(torch.nn.functional.silu(x @ w_gate.T) * (x @ w_up.T))


def check_consumers() -> None:
    """Dense, batched and grouped products and a compiled graph see no difference."""
    work = replace(GATE, experts=16)
    original = make_scales(work.rows, work.cols, DEVICE)[: work.experts].contiguous()
    original = original % 120  # far from E4M3's NaN, so that sums stay finite
    streams = compress_nvfp4_scales(original)
    scales = prepare_csf_scales(
        NVFP4, streams.fixed, streams.exceptions, streams.counts, rows=work.rows, cols=work.cols
    )
    decoded = decompress_nvfp4_csf_scales(scales)
    packed = torch.randint(0, 256, (work.experts, work.rows, work.cols * 8), dtype=torch.uint8, device=DEVICE)
    global_scale = torch.tensor(2.0**-12, device=DEVICE)  # so that the hidden values' block scales fit E4M3
    tokens = torch.randn(96, work.cols * 16, device=DEVICE, dtype=torch.bfloat16)

    def products(block_scales: torch.Tensor, ends: torch.Tensor) -> list[torch.Tensor]:
        weights = dequantize(packed, block_scales, global_scale)
        batch = tokens.view(work.experts, -1, tokens.shape[1])
        return [
            tokens @ weights[3].T,
            torch.bmm(batch, weights.transpose(1, 2)),
            torch._grouped_mm(tokens, weights.transpose(1, 2), offs=ends),
        ]

    rows = torch.tensor([12 if e % 2 else 0 for e in range(work.experts)], device=DEVICE)
    ends = rows.cumsum(0).to(torch.int32)
    start = torch.cat([torch.zeros_like(ends[:1]), ends])
    workspace = torch.zeros(work.dense_bytes, dtype=torch.uint8, device=DEVICE)
    routed = decompress_nvfp4_csf_scales(scales, out=workspace, expert_start=start)
    for name, a, b in zip(
        ("dense", "batched", "grouped"), products(original, ends), products(decoded, ends), strict=True
    ):
        same(a, b, f"{name} product")
        if not a.isfinite().all():
            raise SystemExit(f"FAILED: {name} product is not finite: it proves nothing")
    same(products(routed, ends)[2], products(original, ends)[2], "grouped product of routed scales")

    def fused(x: torch.Tensor, csf: CsfScales, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dense = decompress_nvfp4_csf_scales(csf, out=out)
        return swiglu(x, dense[0], dense[1], packed[:2], global_scale)

    def plain(x: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return swiglu(x, dense[0], dense[1], packed[:2], global_scale)

    got = torch.compile(fused, fullgraph=True)(tokens, scales, workspace)
    want = torch.compile(plain, fullgraph=True)(tokens, original.view(torch.float8_e4m3fn))
    same(workspace, original, "workspace of the compiled graph")
    for name, a, b in zip(("codes", "scales"), got, want, strict=True):
        same(a, b, f"{name} of the compiled SwiGLU")
    if got[1].float().isnan().any():
        raise SystemExit("FAILED: the compiled SwiGLU has block scales that are no numbers: it proves nothing")
    eager = plain(tokens, decoded)
    print(f"  compiled against eager: {float((eager[0] == got[0]).float().mean()):.2%} of the code bytes are the same")


def sanitize(part: int, parts: int) -> None:
    """Every path of the kernels on small stacks, or a part of them: for compute-sanitizer, which is slow."""
    shapes = [(NVFP4, 144, 160), (NVFP4, 320, 40), (NVFP4, 48, 6), (NVFP4, 192, 24), (MXFP4, 144, 72), (MXFP4, 192, 9)]
    cases = [(shape, share) for shape in shapes for share in (0.002, 0.3)]  # without leads, and with
    for (fmt, rows, cols), share in cases[part::parts]:
        work = Workload(f"{fmt.title} {rows}x{cols}", fmt, 3, rows, cols, share)
        check_streams(work, f"{share:.1%}", make_streams(work, DEVICE))
        check_routing(work)
        check_layouts(work)
        check_encoder(replace(work, experts=2))
    print(f"sanitize: all paths of {len(cases[part::parts])} of {len(cases)} stacks ran")


def timed(name: str, check: Callable[..., None], *args: object) -> None:
    begin = time.monotonic()
    check(*args)
    torch.cuda.synchronize()
    print(f"ok {name} ({time.monotonic() - begin:.1f} s)", flush=True)


def check_all() -> None:
    for work in WORKLOADS:
        timed(f"{work.name}: random streams", check_streams, work, "random", make_streams(work, DEVICE))
        timed(f"{work.name}: routing", check_routing, work)
        timed(f"{work.name}: layouts", check_layouts, work)
        timed(f"{work.name}: encoder", check_encoder, work)
    for work in (GATE, WORKLOADS[1], WORKLOADS[5]):
        small = replace(work, experts=48)
        for name, streams in adversarial(small).items():
            timed(f"{work.name}: {name}", check_streams, small, name, streams)
    timed("stack of more than 2 GiB", check_large)
    for work in (GATE, WORKLOADS[4]):
        timed(f"CUDA graph, {work.format.title}", check_graph, work)
    timed("consumers", check_consumers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitize", metavar="I/N", nargs="?", const="0/1", help="small stacks, for compute-sanitizer")
    parser.add_argument("--no-checks", action="store_true", help="the timings alone")
    parser.add_argument("--no-bench", action="store_true", help="the checks alone")
    parser.add_argument("--json", type=Path, help="write the timings there too")
    options = parser.parse_args()
    if options.sanitize:
        sanitize(*map(int, options.sanitize.split("/")))
        return
    if not options.no_checks:
        check_all()
    if not options.no_bench:
        result = run_bench(BenchOptions())
        if options.json:
            options.json.write_text(json.dumps(bench_document(result), indent=1))
        print_out(*bench_report(result))


if __name__ == "__main__":
    main()
