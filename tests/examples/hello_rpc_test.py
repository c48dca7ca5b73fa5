#!/usr/bin/env python3
"""hello_rpc PROGRAM: it prints what its source says."""
import sys
import unittest

from processes import main, run


class HelloRpc(unittest.TestCase):
    def test_prints_its_lines(self):
        status, lines = run(PROGRAM)
        self.assertEqual(status, 0, lines)
        self.assertEqual(lines[:2], ["hello, weft", "4"])
        self.assertIn(lines[2:], [[], ["too late"]])  # five milliseconds are usually enough


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
