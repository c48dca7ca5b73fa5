#!/usr/bin/env python3
"""tracing PROGRAM: the file has one trace, in which each call is under the call that made it."""
import json
import pathlib
import sys
import tempfile
import unittest

from processes import main, run


class Tracing(unittest.TestCase):
    def test_writes_one_trace_of_nested_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "trace.json"
            status, lines = run(PROGRAM, file)
            self.assertEqual(status, 0, lines)
            self.assertIn(f"the order costs 12, and took 8 spans: {file}", lines)
            events = json.loads(file.read_text())["traceEvents"]
        agents = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        spans = {event["args"]["span"]: event for event in events if event["ph"] == "X"}
        self.assertEqual(len({span["args"]["trace"] for span in spans.values()}), 1)

        def chain(span):
            below = f"{agents[span['pid']]} {span['cat']} {span['name']}"
            parent = span["args"].get("parent")
            return ([] if parent is None else chain(spans[parent])) + [below]

        order = ["worker0 made shop.order", "worker1 served shop.order"]
        chains = [chain(span) for span in spans.values()]
        self.assertEqual(chains.count(order), 1)
        self.assertEqual(chains.count([*order, "worker1 made warehouse.price", "worker2 served warehouse.price"]), 3)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
