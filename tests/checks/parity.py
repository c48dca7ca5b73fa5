#!/usr/bin/env python3
"""The pages of parity keep their word: the tests of weft that they name exist, and every row says something.

  parity.py            checks docs/parity_pytorch.md, docs/parity_ddp.md, docs/parity_pipeline.md, docs/parity_sharded.md and
                       docs/parity_elastic.md
  parity.py --count    prints for each page how many tests are covered, have no meaning in weft, never ran on a GPU, or are missing
  parity.py --wheel TORCH   also: each test of that LibTorch wheel's suites (the folder `torch`) stands in a page, and no other;
                            of distributed_test.py those whose names match DDP, also if they are commented out there
"""
import argparse
import collections
import pathlib
import re
import sys

from sources import ROOT, cxx_files

SUITES = pathlib.Path("testing/_internal/distributed")
PAGES = {  # by page: the files of the wheel, by their name on the page; None: a file that the wheel lacks
    "parity_pytorch.md": {
        "rpc_test.py": "rpc/rpc_test.py",
        "dist_autograd_test.py": "rpc/dist_autograd_test.py",
        "dist_optimizer_test.py": "rpc/dist_optimizer_test.py",
        "faulty_agent_rpc_test.py": "rpc/faulty_agent_rpc_test.py",
        "remote_module_test.py": "nn/api/remote_module_test.py",
        "parameter_server_test.py": "rpc/examples/parameter_server_test.py",
        "reinforcement_learning_rpc_test.py": "rpc/examples/reinforcement_learning_rpc_test.py",
    },
    "parity_ddp.md": {
        "distributed_test.py": "distributed_test.py",
        "ddp_under_dist_autograd_test.py": "ddp_under_dist_autograd_test.py",
        "test_torch.py": None,
    },
    "parity_pipeline.md": dict.fromkeys([
        "schedules.py", "_backward.py",  # whose faults the page lists, by function
        *(f"tests/{name}.py" for name in (
            "skip/test_api", "skip/test_gpipe", "skip/test_inspect_skip_layout", "skip/test_leak", "skip/test_portal",
            "skip/test_stash_pop", "skip/test_tracker", "skip/test_verify_skippables", "test_balance", "test_bugs",
            "test_checkpoint", "test_copy", "test_deferred_batch_norm", "test_dependency", "test_gpipe", "test_inplace",
            "test_microbatch", "test_phony", "test_pipeline", "test_stream", "test_transparency", "test_worker")),
        *(f"test_{name}.py" for name in (
            "schedule", "schedule_multiproc", "stage", "backward", "microbatch", "pipe", "transformer", "unflatten",
            "composability", "dtensor_pp_integration", "dtensor_pp_unit_tests", "spmd_types_pp_integration")),
        *(f"tensor_parallel/test_{name}.py" for name in (
            "mappings", "layers", "cross_entropy", "random", "data", "initialization", "tensor_parallel_utils",
            "tp_attrs_without_init")),
        *(f"tensor/parallel/test_tp_{name}.py" for name in ("style", "examples", "random_state")),
    ]),
    "parity_sharded.md": dict.fromkeys([
        "test_zero_redundancy_optimizer.py", "test_wrap.py",
        *(f"test_fsdp_{name}.py" for name in (
            "core", "clip_grad_norm", "comm", "exec_order", "freezing_weights", "grad_acc", "hybrid_shard",
            "ignored_modules", "input", "memory", "misc", "mixed_precision", "multiple_forward",
            "multiple_wrapping", "optim_state", "overlap", "pure_fp16", "sharded_grad_scaler", "state_dict",
            "summon_full_params", "traversal", "unshard_params", "use_orig_params", "uneven", "apply",
            "backward_prefetch", "checkpoint", "flatten_params")),
        *(f"test_fully_shard_{name}.py" for name in (
            "autograd", "clip_grad_norm_", "comm", "frozen", "ignore_params", "init", "logging", "memory",
            "mixed_precision", "overlap", "state", "state_dict", "training", "grad_scaler", "extensions")),
    ]),
    "parity_elastic.md": dict.fromkeys([
        "test_elastic_driver.py", "test_elastic_discovery.py", "elastic_common.py",  # Horovod's
        "local_elastic_agent_test.py",  # torchelastic's
    ]),
}
# The tests of distributed_test.py for data parallel training, by class and name. The others are for process
# groups.
DDP = re.compile(r"ddp|DistributedDataParallel|data_parallel|Sampler|sync_?b(atch)?n|localSGD|averager|average_parameters|no_sync"
                 r"|static_graph|bucket|verify_model|unused|graph_across_ranks", re.I)

HEADING = re.compile(r"^### ([\w/]+\.py)(?:: (\w+))?\s*$")  # without a class: functions of the file
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*) \|\s*$")
NAME = re.compile(r"`([^`]+)`")
CXX_TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
PYTHON_TEST = re.compile(r"^\s*def (test_\w+)", re.M)
DEFINITION = re.compile(r"^( *)(class|def) (\w+)")


def weft_tests(root=ROOT):
    """The names by which the pages may call weft's tests."""
    names = set()
    for path in cxx_files():
        if path.parts[0] == "tests":
            text = (root / path).read_text()
            names.update(f"{suite}.{test}" for suite, test in CXX_TEST.findall(text))
    for path in (root / "tests").rglob("*_test.py"):
        names.update(f"{path.name}: {test}" for test in PYTHON_TEST.findall(path.read_text()))
    return names


def rows_of(text):
    """(line, file, class, test, behaviour, what weft has) of each row."""
    file = cls = None
    for number, line in enumerate(text.splitlines(), 1):
        if heading := HEADING.match(line):
            file, cls = heading.groups()
        elif row := ROW.match(line):
            yield number, file, cls, *row.groups()


def state_of(weft):
    for state in ("no meaning", "not on a GPU", "missing"):
        if weft.startswith(state + ": ") and len(weft) > len(state) + 2:
            return state if state != "not on a GPU" or NAME.search(weft) else None
    return "covered" if NAME.search(weft) else None


def problems_of(page, text, tests):
    seen = set()
    for line, file, cls, test, behaviour, weft in rows_of(text):
        where = f"docs/{page}:{line}: {test}"
        if file not in PAGES[page]:
            yield f"{where}: stands below no heading of this page like `### rpc_test.py: RpcTest`"
        if (file, cls, test) in seen:
            yield f"{where}: stands there twice"
        seen.add((file, cls, test))
        if not behaviour.strip():
            yield f"{where}: does not say what it tests"
        state = state_of(weft)
        if state is None:
            yield f"{where}: names neither a test of weft nor says `no meaning: why` or `missing: what`"
        elif state in ("covered", "not on a GPU"):
            for name in NAME.findall(weft):
                if name not in tests:
                    yield f"{where}: weft has no test {name}"


def tests_of(source):
    """(class, test) of a Python source, by indentation: of nested classes too, and of text that is commented out as a string."""
    outer = []  # (indentation, kind, name) of the definitions around a line
    for line in source.splitlines():
        if definition := DEFINITION.match(line):
            indent, kind, name = definition.groups()
            while outer and outer[-1][0] >= len(indent):
                outer.pop()
            if kind == "def" and name.startswith("test_") and outer and outer[-1][1] == "class":
                yield outer[-1][2], name
            outer.append((len(indent), kind, name))


def wheel_tests(torch, files):
    """The tests that a page has to have."""
    for name, path in files.items():
        for cls, test in tests_of((torch / SUITES / path).read_text()) if path else ():
            if name != "distributed_test.py" or DDP.search(f"{cls}.{test}"):
                yield name, cls, test


def wheel_problems(page, listed, theirs):
    ours = {row for row in listed if PAGES[page].get(row[0])}
    yield from (f"{file}: {cls}.{test} is not in docs/{page}" for file, cls, test in sorted(theirs - ours))
    yield from (f"{file}: {cls}.{test} is in docs/{page} alone" for file, cls, test in sorted(ours - theirs, key=str))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--wheel", type=pathlib.Path)
    options = parser.parse_args()
    tests = weft_tests()
    problems = []
    for page, files in PAGES.items():
        text = (ROOT / "docs" / page).read_text()
        problems += problems_of(page, text, tests)
        listed = {(file, cls, test) for _, file, cls, test, _, _ in rows_of(text)}
        if options.wheel:
            problems += wheel_problems(page, listed, set(wheel_tests(options.wheel, files)))
        if options.count:
            states = collections.Counter(state_of(weft) for *_, weft in rows_of(text))
            print(f"{page}: {len(listed)} tests: {states['covered']} covered, {states['no meaning']} without a meaning here, "
                  f"{states['not on a GPU']} not run on a GPU, {states['missing']} missing")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
