#!/usr/bin/env python3
"""hybrid_embedding PROGRAM: the trainers learn with one sparse table, and their dense heads stay equal."""
import re
import sys
import unittest

from processes import main, run


class HybridEmbedding(unittest.TestCase):
    def test_learns(self):
        status, lines = run(PROGRAM, "--trainers", 2, "--steps", 41)
        self.assertEqual(status, 0, lines)
        for trainer in (1, 2):
            pattern = rf"trainer{trainer} step=\d+ loss=([\d.]+)"
            losses = [float(m[1]) for line in lines if (m := re.fullmatch(pattern, line))]
            self.assertEqual(len(losses), 5, lines)
            self.assertGreater(losses[0], 2.5)  # ln 20 = 3.0: the loss of an untrained model
            self.assertLess(losses[-1], 1.0, losses)
        ends = [m for line in lines if (m := re.fullmatch(r"trainer\d unseen=([\d.]+) head=(\S+)", line))]
        self.assertEqual(len(ends), 2, lines)
        self.assertLess(max(float(end[1]) for end in ends), 1.0, lines)
        self.assertEqual(ends[0][2], ends[1][2], "the heads differ")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
