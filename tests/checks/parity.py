#!/usr/bin/env python3
"""The tables of parity keep their word: the tests of weft that they name exist, and every row says something.

  parity.py            checks the tables of tests/parity, and that docs/parity.md has their numbers
  parity.py --count    prints the rows of the table in docs/parity.md
  parity.py --wheel TORCH   also: each test of that LibTorch wheel's suites (the folder `torch`) is in a table, and no other; of
                            distributed_test.py those whose names match DDP, also if they are commented out there

A row of a table has one test of a peer, or several tests of one class with the same answer, separated by ` | `. It then has one
behaviour for all, or one for each. The column `weft` lists tests of weft, separated by commas: `Suite.Name`, or `file.py: test_name`.
Parentheses after a name say which part the test asserts. files.tsv has the suite and the version of each file.
"""
import argparse
import collections
import pathlib
import re
import sys

from sources import ROOT, cxx_files

TABLES = ("rpc", "ddp", "sharded", "pipeline", "elastic")
FILE_COLUMNS = ("file", "suite", "path", "version")
COLUMNS = ("file", "class", "test", "behaviour", "state", "weft", "note")  # without a class: functions of the file
STATES = ("covered", "no meaning", "not on a GPU", "missing")
WHEEL = "torch/testing/"  # where a wheel has suites
# The tests of distributed_test.py for data parallel training, by class and name. The others are for process
# groups.
DDP = re.compile(r"ddp|DistributedDataParallel|data_parallel|Sampler|sync_?b(atch)?n|localSGD|averager|average_parameters|no_sync"
                 r"|static_graph|bucket|verify_model|unused|graph_across_ranks", re.I)

Row = collections.namedtuple("Row", ("line", "file", "cls", "tests", "behaviours", "state", "weft", "note"))
CXX_TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
PYTHON_TEST = re.compile(r"^\s*def (test_\w+)", re.M)
DEFINITION = re.compile(r"^( *)(class|def) (\w+)")


def weft_tests(root=ROOT):
    """The names by which the tables may call weft's tests."""
    names = set()
    for path in cxx_files():
        if path.parts[0] == "tests":
            text = (root / path).read_text()
            names.update(f"{suite}.{test}" for suite, test in CXX_TEST.findall(text))
    for path in (root / "tests").rglob("*_test.py"):
        names.update(f"{path.name}: {test}" for test in PYTHON_TEST.findall(path.read_text()))
    return names


def cells_of(text, columns):
    """The cells of each line below the header. Raises ValueError for a line with another number of cells."""
    head, *lines = (tuple(line.split("\t")) for line in text.splitlines())
    for number, cells in enumerate([head, *lines], 1):
        if len(cells) != len(columns) or (number == 1 and cells != columns):
            raise ValueError(f"line {number}: expected the columns {', '.join(columns)}")
    return lines


def rows_of(text):
    for line, (file, cls, tests, behaviours, state, weft, note) in enumerate(cells_of(text, COLUMNS), 2):
        yield Row(line, file, cls, tests.split(" | "), behaviours.split(" | "), state,
                  [name.partition(" (")[0] for name in weft.split(", ")] if weft else [], note)


def tests_in(rows):
    return [(row.file, row.cls, test) for row in rows for test in row.tests]


def problems_of(table, rows, files, tests):
    seen = set()
    for row in rows:
        where = f"tests/parity/{table}.tsv:{row.line}: {row.tests[0]}"
        if row.file not in files:
            yield f"{where}: files.tsv does not have {row.file}"
        for key in tests_in([row]):
            if key in seen:
                yield f"{where}: {key[2]} is there twice"
            seen.add(key)
        if not all(row.behaviours) or len(row.behaviours) not in (1, len(row.tests)):
            yield f"{where}: does not say what each test tests"
        if row.state not in STATES:
            yield f"{where}: no state {row.state!r}; the states are {', '.join(STATES)}"
        elif row.state in ("no meaning", "missing") and not row.note:
            yield f"{where}: {row.state}, and the note does not say why"
        elif row.state in ("covered", "not on a GPU") and not row.weft:
            yield f"{where}: {row.state}, and names no test of weft"
        for name in row.weft:
            if name not in tests:
                yield f"{where}: weft has no test {name}"


def counts_of(rows, files):
    """The rows of the table in docs/parity.md: for each suite, the number of its tests, and of those in each state."""
    counts = collections.Counter((files[row.file][0], row.state) for row in rows for _ in row.tests if row.file in files)
    for suite in dict.fromkeys(suite for suite, *_ in files.values()):
        numbers = [counts[suite, state] for state in STATES]
        yield f"| {suite} | {sum(numbers)} | {' | '.join(map(str, numbers))} |"


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
    """The tests that the tables have to have."""
    for name, (_, path, _) in files.items():
        for cls, test in tests_of((torch.parent / path).read_text()) if path.startswith(WHEEL) else ():
            if name != "distributed_test.py" or DDP.search(f"{cls}.{test}"):
                yield name, cls, test


def wheel_problems(listed, theirs, files):
    ours = {test for test in listed if test[0] in files and files[test[0]][1].startswith(WHEEL)}
    yield from (f"{file}: {cls}.{test} is in no table of tests/parity" for file, cls, test in sorted(theirs - ours))
    yield from (f"{file}: {cls}.{test} is in a table of tests/parity alone" for file, cls, test in sorted(ours - theirs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--wheel", type=pathlib.Path)
    options = parser.parse_args()
    tables = ROOT / "tests/parity"
    files = {file: rest for file, *rest in cells_of((tables / "files.tsv").read_text(), FILE_COLUMNS)}
    tests = weft_tests()
    rows, problems = [], []
    for table in TABLES:
        rows += (added := list(rows_of((tables / f"{table}.tsv").read_text())))
        problems += problems_of(table, added, files, tests)
    listed = set(tests_in(rows))
    problems += (f"tests/parity/files.tsv: no table has tests of {file}" for file in sorted(files.keys() - {test[0] for test in listed}))
    if options.wheel:
        problems += wheel_problems(listed, set(wheel_tests(options.wheel, files)), files)
    page = (ROOT / "docs/parity.md").read_text().splitlines()
    for count in counts_of(rows, files):
        if options.count:
            print(count)
        if count not in page:
            problems.append(f"docs/parity.md: the table lacks this row: {count}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
