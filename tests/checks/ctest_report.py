#!/usr/bin/env python3
"""ctest_report.py REPORT: what ./dev says of ctest's JUnit report, a line each.

    passed 12                                 how many have: of a GoogleTest suite, its cases
    failed rpc.Codec.ints
    failed rpc.Codec.ints: did not end        the process of the suite died or timed out in this case
    skipped rpc.EtcdStore.Sets: no etcd       also a case of a Python test that has passed (tests/examples/processes.py)
"""
import re
import sys
import xml.etree.ElementTree as xml

BEGUN = re.compile(r"^\[ RUN      \] (\S+)$", re.M)
PASSED = re.compile(r"^\[       OK \] (\S+)(?:, where .*)? \(\d+ ms\)$", re.M)
FAILED = re.compile(r"^\[  FAILED  \] (\S+?)(?:, where .*)? \(\d+ ms\)$", re.M)
SKIPPED = re.compile(r": Skipped\n(.+)\n(?:.*\n)*?\[  SKIPPED \] (\S+) \(\d+ ms\)$", re.M)
ENDS = "[       OK ]", "[  FAILED  ]", "[  SKIPPED ]"
PYTHON = re.compile(r"^skipped: (.+?: .*)$", re.M)


def lines(report):
    passed, failed, skipped = 0, [], []
    for case in xml.parse(report).getroot().iter("testcase"):
        name, status, output = case.get("name"), case.get("status"), case.findtext("system-out") or ""
        layer = name.split(".")[0]
        begun = BEGUN.findall(output)
        skips = [f"{layer}.{one}: {reason}" for reason, one in SKIPPED.findall(output)]
        skips += [f"{name}: {one}" for one in PYTHON.findall(output)]
        if status == "run":
            # The middle of a long output is omitted.
            passed += max(len(PASSED.findall(output)), 0 if skips and begun else 1)
            skipped += skips
        elif status == "notrun" and case.find("skipped").get("message", "").startswith("SKIP_"):
            skipped += skips or [name]
        elif status != "disabled":
            cases = [f"{layer}.{one}" for one in FAILED.findall(output)]
            if begun and output.rfind("[ RUN      ]") > max(output.rfind(end) for end in ENDS):
                cases.append(f"{layer}.{begun[-1]}: did not end")
            passed += len(PASSED.findall(output)) if begun else 0
            skipped += skips if begun else []
            failed += cases or [name]
    return [f"passed {passed}", *(f"failed {name}" for name in failed), *(f"skipped {name}" for name in skipped)]


if __name__ == "__main__":
    print("\n".join(lines(sys.argv[1])))
