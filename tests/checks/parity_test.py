#!/usr/bin/env python3
"""parity.py finds each kind of fault, and accepts what is right."""
import sys

from parity import COLUMNS, DDP, counts_of, problems_of, rows_of, tests_of, wheel_problems

TESTS = {"LimitsTest.OfCalls", "tool_test.py: test_list"}
FILES = {"rpc_test.py": ("RPC", "torch/testing/rpc_test.py", "2.15"), "test_torch.py": ("Horovod", "test/test_torch.py", "main")}


def table(*rows):
    return "\n".join("\t".join(cells) for cells in (COLUMNS, *rows)) + "\n"


def row(test="test_a", behaviour="calls are limited", state="covered", weft="LimitsTest.OfCalls", note="", file="rpc_test.py", cls="RpcTest"):
    return file, cls, test, behaviour, state, weft, note


WRONG = [
    ([row(weft="LimitsTest.Gone")], "no test LimitsTest.Gone"),
    ([row(weft="LimitsTest.OfCalls, tool_test.py: test_gone (in part)")], "no test tool_test.py: test_gone"),
    ([row(state="missing", weft="LimitsTest.Gone", note="limits")], "no test LimitsTest.Gone"),
    ([row(weft="")], "names no test"),
    ([row(state="not on a GPU", weft="")], "names no test"),
    ([row(state="missing")], "does not say why"),
    ([row(state="no meaning", weft="")], "does not say why"),
    ([row(state="somewhere")], "no state 'somewhere'"),
    ([row(behaviour="")], "does not say what"),
    ([row("test_a | test_b | test_c", "limits | the same")], "does not say what"),
    ([row(), row(behaviour="another")], "test_a is there twice"),
    ([row(), row("test_b | test_a")], "test_a is there twice"),
    ([row(file="rcp_test.py")], "files.tsv does not have rcp_test.py"),
]
RIGHT = [
    [row(weft="LimitsTest.OfCalls (of one agent), tool_test.py: test_list")],
    [row(state="no meaning", weft="", note="pickle")],
    [row(state="missing", weft="", note="device maps"), row("test_b", state="missing", note="device maps")],
    [row(), row(cls="Other"), row(cls=""), row(file="test_torch.py")],
    [row("test_a | test_b", "limits | the same"), row("test_c | test_d", "limits")],
]
SOURCE = '''
class Outer:
    class Base:
        def test_ddp_a(self):
            class Net:
                def forward(self):
                    pass

            def test_inner():
                pass

        """
        def test_gather(self):
            pass
        """

    def test_outer(self):
        pass

def test_function():
    pass
'''

failures = []
for rows, words in WRONG:
    found = list(problems_of("rpc", rows_of(table(*rows)), FILES, TESTS))
    if len(found) != 1 or words not in found[0]:
        failures.append(f"not found alone: {words}: {found}")
for rows in RIGHT:
    failures += problems_of("rpc", rows_of(table(*rows)), FILES, TESTS)
for text in (table(row()[1:]), table(row() + ("more",)), table(row()).replace("state", "status")):
    try:
        failures.append(f"no error: {list(rows_of(text))}")
    except ValueError:
        pass
counted = list(rows_of(table(row("test_a | test_b"), row("test_c", state="missing", note="x"), row(file="test_torch.py"))))
if list(counts_of(counted, FILES)) != ["| RPC | 3 | 2 | 0 | 0 | 1 |", "| Horovod | 1 | 1 | 0 | 0 | 0 |"]:
    failures.append(f"counts_of: {list(counts_of(counted, FILES))}")
if list(tests_of(SOURCE)) != [("Base", "test_ddp_a"), ("Base", "test_gather"), ("Outer", "test_outer")]:
    failures.append(f"tests_of: {list(tests_of(SOURCE))}")
if not DDP.search("TestBucketCapacityConfig.test_immutability") or DDP.search("_DistTestBase.test_gather"):
    failures.append("DDP")
A, B, C = (("rpc_test.py", "Base", "test_a"), ("rpc_test.py", "Base", "test_b"),
           ("test_torch.py", "TorchTests", "test_c"))  # of another project: no wheel has it
if list(wheel_problems({A, C}, {B}, FILES)) != ["rpc_test.py: Base.test_b is in no table of tests/parity",
                                                "rpc_test.py: Base.test_a is in a table of tests/parity alone"]:
    failures.append("wheel_problems")
for failure in failures:
    print(failure, file=sys.stderr)
sys.exit(1 if failures else 0)
