#!/usr/bin/env python3
"""sharded_embedding PROGRAM: two trainers learn all ratings, and each owner has about half of the rows."""
import re
import sys
import unittest

from processes import main, run


class ShardedEmbedding(unittest.TestCase):
    def test_learns_rows_of_two_owners(self):
        status, lines = run(PROGRAM)
        self.assertEqual(status, 0, lines)
        rows = [int(m[2]) for line in lines if (m := re.fullmatch(r"worker([01]) has (\d+) rows", line))]
        self.assertEqual(len(rows), 2, lines)
        self.assertEqual(sum(rows), 300)
        self.assertGreater(min(rows), 100)
        errors = [float(m[1]) for line in lines if (m := re.fullmatch(r"the mean squared error is ([\d.]+)", line))]
        self.assertEqual(len(errors), 1, lines)
        self.assertLess(errors[0], 0.05)  # 0.5 at the beginning; 0.25 if one trainer does not train


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
