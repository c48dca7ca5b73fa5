"""The results of c10d's Gloo backend for the cases of gloo_process_test.cc.

  gloo_oracle.py FOLDER

Reads FOLDER/cases.json, and leaves there for each rank R a file of bytes, R.results, and R.index with a line
"CASE OFFSET BYTES" for each result in it. One start of PyTorch serves all cases: it forks as many ranks as any case
has. Exit status 77, and a line that says why, where this Python has no torch.distributed with Gloo.

Inputs are a hash of case, rank and index, as gloo_cases.h computes it, so that no generator of random numbers is part of
the comparison. What only moves values goes as bytes: Gloo has fewer types than there are to move.
"""
import ctypes
import datetime
import json
import os
import signal
import sys

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # wherever this host's name leads, all ranks are on it
try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing
    if not dist.is_available() or not dist.is_gloo_available():
        raise ImportError("its torch.distributed is without Gloo")
except Exception as error:  # a wheel without its libraries raises OSError or ValueError, too
    print(f"{sys.executable} has no torch.distributed with Gloo: {error}")
    sys.exit(77)

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}  # of a significand
REDUCTIONS = {"sum": "SUM", "avg": "SUM", "premul_sum": "SUM", "product": "PRODUCT", "min": "MIN", "max": "MAX",
              "bit_and": "BAND", "bit_or": "BOR", "bit_xor": "BXOR"}


def signed(word):
    return word - (1 << 64) if word >> 63 else word


def shifted(words, count):
    """To the right, as if they had no sign."""
    return (words >> count) & ((1 << (64 - count)) - 1)


def hashes(case, rank, count, period):
    """As many words of 64 bits, which repeat after `period` of them."""
    seed = (case["number"] * 64 + rank + 1) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    words = (torch.arange(count) % max(1, period)) * signed(0x9E3779B97F4A7C15) + signed(seed)
    words = (words ^ shifted(words, 30)) * signed(0xBF58476D1CE4E5B9)
    words = (words ^ shifted(words, 27)) * signed(0x94D049BB133111EB)
    return words ^ shifted(words, 31)


def bits(words, dtype):
    """Any bits that the type has."""
    if dtype == torch.bool:
        return (words & 1).to(dtype)
    return words.to(BITS[dtype.itemsize]).view(dtype)


def numbers(words, dtype, reduction):
    """Inputs of reductions: integers of any size, and numbers with all their digits, far from the limits of the type."""
    if not dtype.is_floating_point:
        return (words & 1).to(dtype) if dtype == torch.bool else words.to(dtype)
    digits = DIGITS[dtype]
    if reduction == "product":  # 0.5 to 2, of both signs
        fractions = (1 << (digits - 1)) + shifted(words, 65 - digits)
        powers = torch.tensor([s * 2.0 ** (e - digits) for s in (1, -1) for e in (0, 1)], dtype=torch.float64)
        return (fractions.to(torch.float64) * powers[words & 3]).to(dtype)
    powers = torch.tensor([2.0 ** (e - digits) for e in range(8)], dtype=torch.float64)
    return ((words >> (64 - digits)).to(torch.float64) * powers[words & 7]).to(dtype)


def own_input(case, rank):
    dtype, count = getattr(torch, case["dtype"]), case["inputs"][rank]
    reduction = case["reduction"]
    if not reduction:
        return bits(hashes(case, rank, count, case["period"]), dtype).view(torch.uint8)
    if dtype.is_complex:
        real = torch.float32 if dtype == torch.complex64 else torch.float64
        return numbers(hashes(case, rank, 2 * count, 2 * case["period"]), real, reduction)
    return numbers(hashes(case, rank, count, case["period"]), dtype, reduction)


def begun(case, rank, tensor):
    """Of the rank's own tensor, which stays as it is."""
    return tensor * ((rank + 1) / 2) if case["reduction"] == "premul_sum" else tensor.clone()


def finished(case, tensor):
    if case["reduction"] == "avg":
        return torch.div(tensor, case["ranks"], rounding_mode=None if tensor.is_floating_point() else "trunc")
    if tensor.dtype == torch.bool:  # which Gloo adds as bytes
        return tensor.view(torch.uint8).ne(0)
    return tensor


def result(case, rank, group):
    op, ranks, root = case["op"], case["ranks"], case["root"]
    own = own_input(case, rank)
    # The elements that each rank has for each rank, in elements of `own`.
    unit = 1 if case["reduction"] else getattr(torch, case["dtype"]).itemsize
    if getattr(torch, case["dtype"]).is_complex and case["reduction"]:
        unit = 2
    sizes = [[unit * n for n in row] for row in case["sizes"]]
    n = sizes[rank][rank]
    reduction = getattr(dist.ReduceOp, REDUCTIONS[case["reduction"]]) if case["reduction"] else None
    if op in ("all_reduce", "reduce_scatter", "reduce_scatter_v"):
        whole = begun(case, rank, own)
        if whole.numel():
            if op == "reduce_scatter" and HAS_REDUCE_SCATTER:
                part = own.new_empty(n)
                dist.reduce_scatter_tensor(part, whole, reduction, group=group)
                return finished(case, part)
            dist.all_reduce(whole, reduction, group=group)
        return finished(case, whole if op == "all_reduce" else whole.split(sizes[rank])[rank])
    if op == "reduce":
        whole = begun(case, rank, own)  # Gloo uses it for parts of the sum where the rank is not the root
        if whole.numel():
            dist.reduce(whole, root, reduction, group=group)
        return finished(case, whole) if rank == root else own
    if op == "broadcast":
        if own.numel():
            dist.broadcast(own, root, group=group)
        return own
    if op in ("all_gather", "all_gather_v"):  # by broadcasts: Gloo has none for different sizes
        outputs = [own if r == rank else own.new_empty(sizes[r][rank]) for r in range(ranks)]
        if op == "all_gather" and n:
            dist.all_gather(outputs, own.clone(), group=group)
        for r in range(ranks):
            if op == "all_gather_v" and outputs[r].numel():
                dist.broadcast(outputs[r], r, group=group)
        return torch.cat(outputs)
    if op in ("all_to_all", "all_to_all_v"):
        from_others = [sizes[r][rank] for r in range(ranks)]
        output = own.new_empty(sum(from_others))
        if sum(map(sum, sizes)):
            dist.all_to_all_single(output, own, from_others, sizes[rank], group=group)
        return output
    if op == "gather":
        outputs = [own.new_empty(n) for _ in range(ranks)] if rank == root else None
        if n:
            dist.gather(own, outputs, root, group=group)
        return torch.cat(outputs) if rank == root else own.new_empty(0)
    if op == "scatter":
        output = own.new_empty(n)
        if n:
            dist.scatter(output, list(own.split(n)) if rank == root else None, root, group=group)
        return output
    if op == "send_recv":  # to the next, from the one before
        output = own.new_empty(n)
        if n:
            sent = dist.isend(own, (rank + 1) % ranks, group=group)
            dist.recv(output, (rank - 1) % ranks, group=group)
            sent.wait()
        return output
    raise ValueError(op)


def has_reduce_scatter():
    try:
        dist.reduce_scatter_tensor(torch.empty(1), torch.ones(dist.get_world_size()))
        return True
    except (AttributeError, RuntimeError, NotImplementedError):  # not in all versions
        return False


def run_rank(rank, ranks, folder, cases):
    global HAS_REDUCE_SCATTER
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the process that forked it
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=30))
    HAS_REDUCE_SCATTER = has_reduce_scatter()
    groups = {count: dist.new_group(range(count)) for count in sorted({case["ranks"] for case in cases})}
    offset = 0
    with open(f"{folder}/{rank}.results", "wb") as results, open(f"{folder}/{rank}.index", "w") as index:
        for case in cases:
            if rank < case["ranks"]:
                tensor = result(case, rank, groups[case["ranks"]]).contiguous()
                size = tensor.numel() * tensor.element_size()
                results.write(ctypes.string_at(tensor.data_ptr(), size))
                index.write(f"{case['number']} {offset} {size}\n")
                offset += size
    dist.barrier()
    dist.destroy_process_group()


def main():
    folder = sys.argv[1]
    with open(f"{folder}/cases.json") as file:
        cases = json.load(file)
    torch.set_num_threads(1)
    ranks = max(case["ranks"] for case in cases)
    torch.multiprocessing.start_processes(run_rank, (ranks, folder, cases), nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
