#!/usr/bin/env python3
"""lbfgs PROGRAM: it finds the minimum of a function of parameters on two processes."""
import re
import sys
import unittest

from processes import main, run


class Lbfgs(unittest.TestCase):
    def test_finds_the_minimum(self):
        status, lines = run(PROGRAM)
        self.assertEqual(status, 0, lines)
        pattern = r"step \d began at f = (\S+), and evaluated f (\d+) times"
        steps = [match for line in lines if (match := re.fullmatch(pattern, line))]
        self.assertEqual(len(steps), 6, lines)
        self.assertAlmostEqual(float(steps[0][1]), 36.2)  # f(-1.2, 2)
        self.assertLess(float(steps[-1][1]), 1e-12)
        self.assertLess(sum(int(step[2]) for step in steps), 100)  # gradient descent needs thousands
        self.assertIn("the minimum is at x = 1.000000, y = 1.000000", lines)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
