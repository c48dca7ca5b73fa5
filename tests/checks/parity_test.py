#!/usr/bin/env python3
"""parity.py finds each kind of fault, and accepts what is right."""
import sys

from parity import DDP, problems_of, rows_of, state_of, tests_of, wheel_problems

TESTS = {"LimitsTest.OfCalls", "tool_test.py: test_list"}
HEAD = "### rpc_test.py: RpcTest\n| PyTorch | behaviour | weft |\n|---|---|---|\n"

WRONG = [
    (HEAD + "| `test_a` | calls are limited | `LimitsTest.Gone` |", "no test LimitsTest.Gone"),
    (HEAD + "| `test_a` | calls are limited | `LimitsTest.OfCalls`, `tool_test.py: test_gone` |", "test_gone"),
    (HEAD + "| `test_a` | calls are limited | somewhere |", "names neither"),
    (HEAD + "| `test_a` | calls are limited | missing: |", "names neither"),
    (HEAD + "| `test_a` |  | no meaning: pickle |", "does not say"),
    (HEAD + "| `test_a` | x | no meaning: pickle |\n| `test_a` | y | no meaning: pickle |", "twice"),
    ("| `test_a` | calls are limited | `LimitsTest.OfCalls` |", "below no heading"),
    (HEAD.replace("rpc_test", "distributed_test") + "| `test_a` | x | no meaning: pickle |", "below no heading"),
]
RIGHT = [
    HEAD + "| `test_a` | calls are limited | `LimitsTest.OfCalls`, `tool_test.py: test_list` |",
    HEAD + "| `test_a` | what cannot be pickled | no meaning: pickle |",
    HEAD + "| `test_a` | device maps | missing: device maps |",
    HEAD + "| `test_a` | x | no meaning: pickle |\n### rpc_test.py: Other\n| `test_a` | x | no meaning: pickle |",
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
for text, words in WRONG:
    found = list(problems_of("parity_pytorch.md", text, TESTS))
    if not any(words in problem for problem in found):
        failures.append(f"not found: {words}: {found}")
for text in RIGHT:
    failures += list(problems_of("parity_pytorch.md", text, TESTS))
FUNCTIONS = "### tests/skip/test_leak.py\n| `test_a` | x | no meaning: portals |\n### _backward.py\n| `backward` | y | missing: z |"
failures += list(problems_of("parity_pipeline.md", FUNCTIONS, TESTS))
if [row[1:4] for row in rows_of(FUNCTIONS)] != [("tests/skip/test_leak.py", None, "test_a"), ("_backward.py", None, "backward")]:
    failures.append("rows_of: functions of a file")
if not list(problems_of("parity_pipeline.md", FUNCTIONS.replace("leak", "leaks"), TESTS)):
    failures.append("not found: a file that the page does not have")
if [state_of(weft) for weft in ("`A.B`", "no meaning: x", "not on a GPU: `A.B`", "not on a GPU: x", "missing: y", "")] != \
        ["covered", "no meaning", "not on a GPU", None, "missing", None]:
    failures.append("state_of")
if list(tests_of(SOURCE)) != [("Base", "test_ddp_a"), ("Base", "test_gather"), ("Outer", "test_outer")]:
    failures.append(f"tests_of: {list(tests_of(SOURCE))}")
if not DDP.search("TestBucketCapacityConfig.test_immutability") or DDP.search("_DistTestBase.test_gather"):
    failures.append("DDP")
A, B, C = (("distributed_test.py", "Base", "test_a"), ("distributed_test.py", "Base", "test_b"),
           ("test_torch.py", "TorchTests", "test_c"))  # of another project: no wheel has it
if list(wheel_problems("parity_ddp.md", {A, C}, {B})) != ["distributed_test.py: Base.test_b is not in docs/parity_ddp.md",
                                                          "distributed_test.py: Base.test_a is in docs/parity_ddp.md alone"]:
    failures.append("wheel_problems")
for failure in failures:
    print(failure, file=sys.stderr)
sys.exit(1 if failures else 0)
