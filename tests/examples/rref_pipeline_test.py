#!/usr/bin/env python3
"""rref_pipeline PROGRAM: the two stages learn, and exactly as one process without weft does."""
import re
import sys
import unittest

from processes import main, run


def losses(lines):
    return {int(m[1]): float(m[2]) for line in lines if (m := re.fullmatch(r"step=(\d+) loss=([\d.]+)", line))}


class RRefPipeline(unittest.TestCase):
    def test_learns_as_one_process_does(self):
        status, lines = run(PROGRAM)
        self.assertEqual(status, 0, lines)
        piped = losses(lines)
        status, lines = run(PROGRAM, "--alone")
        self.assertEqual(status, 0, lines)
        alone = losses(lines)

        self.assertGreater(len(alone), 5)
        self.assertEqual(piped.keys(), alone.keys())
        for step, loss in alone.items():
            self.assertAlmostEqual(piped[step], loss, delta=1e-5, msg=f"step {step}")
        self.assertGreater(piped[0], 4)  # ln 97 = 4.57: knows nothing yet
        self.assertLess(piped[max(piped)], piped[0] / 4)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
