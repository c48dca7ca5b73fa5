#!/usr/bin/env python3
"""docs/parity_pytorch.md keeps its word: the tests of weft that it names exist, and every row says something.

  parity.py            checks the page
  parity.py --count    prints how many tests are covered, have no meaning in weft, never ran on a GPU, or are missing
  parity.py --wheel TORCH   also: each test of that LibTorch wheel's suites (the folder `torch`) stands in the page, and no other
"""
import argparse
import ast
import collections
import pathlib
import re
import sys

from sources import ROOT, cxx_files

PAGE = ROOT / "docs" / "parity_pytorch.md"
SUITES = pathlib.Path("testing/_internal/distributed")
FILES = {  # of the wheel, by the name that the page has for them
    "rpc_test.py": "rpc/rpc_test.py",
    "dist_autograd_test.py": "rpc/dist_autograd_test.py",
    "distributed_optimizer_test.py": "rpc/distributed_optimizer_test.py",
    "faulty_agent_rpc_test.py": "rpc/faulty_agent_rpc_test.py",
    "remote_module_test.py": "nn/api/remote_module_test.py",
    "parameter_server_test.py": "rpc/examples/parameter_server_test.py",
    "reinforcement_learning_rpc_test.py": "rpc/examples/reinforcement_learning_rpc_test.py",
    "ddp_under_dist_autograd_test.py": "ddp_under_dist_autograd_test.py",
}

HEADING = re.compile(r"^### (\w+\.py): (\w+)\s*$")
ROW = re.compile(r"^\| `(test_\w+)` \| (.*?) \| (.*) \|\s*$")
NAME = re.compile(r"`([^`]+)`")
CXX_TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
PYTHON_TEST = re.compile(r"^\s*def (test_\w+)", re.M)


def weft_tests(root=ROOT):
    """The names by which the page may call weft's tests."""
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


def problems_of(text, tests):
    seen = set()
    for line, file, cls, test, behaviour, weft in rows_of(text):
        where = f"docs/parity_pytorch.md:{line}: {test}"
        if file not in FILES:
            yield f"{where}: stands below no heading like `### rpc_test.py: RpcTest`"
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


def wheel_tests(torch):
    for name, path in FILES.items():
        tree = ast.parse((torch / SUITES / path).read_text())
        for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for node in cls.body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    yield name, cls.name, node.name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--wheel", type=pathlib.Path)
    options = parser.parse_args()
    text = PAGE.read_text()
    problems = list(problems_of(text, weft_tests()))
    listed = {(file, cls, test) for _, file, cls, test, _, _ in rows_of(text)}
    if options.wheel:
        theirs = set(wheel_tests(options.wheel))
        problems += [f"{file}: {cls}.{test} is not in the page" for file, cls, test in sorted(theirs - listed)]
        problems += [f"{file}: {cls}.{test} is in the page alone" for file, cls, test in sorted(listed - theirs, key=str)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if options.count:
        states = collections.Counter(state_of(weft) for *_, weft in rows_of(text))
        print(f"{len(listed)} tests: {states['covered']} covered, {states['no meaning']} without a meaning here, "
              f"{states['not on a GPU']} not run on a GPU, {states['missing']} missing")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
