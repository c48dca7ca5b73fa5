#!/usr/bin/env python3
"""ctest_report.py REPORT: what ./dev says of ctest's JUnit report, a line each.

    passed 12                                 how many have
    failed rpc.Codec.ints
    skipped rpc.EtcdStore.Sets: no etcd       also a case of a Python test that has passed (tests/examples/processes.py)
"""
import re
import sys
import xml.etree.ElementTree as xml

GTEST = re.compile(r": Skipped\n(.+)")
PYTHON = re.compile(r"^skipped: (.+?: .*)$", re.M)


def lines(report):
    passed, failed, skipped = 0, [], []
    for case in xml.parse(report).getroot().iter("testcase"):
        name, status, output = case.get("name"), case.get("status"), case.findtext("system-out") or ""
        cases = [f"{name}: {one}" for one in PYTHON.findall(output)]
        if status == "run":
            passed += 1
            skipped += cases
        elif status == "notrun" and case.find("skipped").get("message", "").startswith("SKIP_"):
            reason = GTEST.search(output)
            skipped += cases or [f"{name}: {reason[1]}" if reason else name]
        elif status != "disabled":
            failed.append(name)
    return [f"passed {passed}", *(f"failed {name}" for name in failed), *(f"skipped {name}" for name in skipped)]


if __name__ == "__main__":
    print("\n".join(lines(sys.argv[1])))
