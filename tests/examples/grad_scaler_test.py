#!/usr/bin/env python3
"""grad_scaler PROGRAM: both ranks skip the same steps, also those in which one of them has finite gradients."""
import re
import sys
import unittest

from processes import main, run


class GradScaler(unittest.TestCase):
    def test_ranks_skip_the_same_steps(self):
        status, lines = run(PROGRAM)
        self.assertEqual(status, 0, lines)
        pattern = r"rank (\d): loss ([\d.]+), scale (\S+), (\d+) steps skipped, (\d+) of them for the other rank's gradients"
        ranks = sorted(match.groups() for line in lines if (match := re.fullmatch(pattern, line)))
        self.assertEqual([rank[0] for rank in ranks], ["0", "1"])
        self.assertEqual(ranks[0][2:4], ranks[1][2:4], "the scale and the steps skipped differ")
        self.assertLess(float(ranks[0][2]), 2 ** 24)  # the scale at the beginning
        self.assertGreater(sum(int(rank[4]) for rank in ranks), 0)
        self.assertLess(max(float(rank[1]) for rank in ranks), 0.02)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
