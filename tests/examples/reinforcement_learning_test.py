#!/usr/bin/env python3
"""reinforcement_learning PROGRAM: the agent learns to balance the pole for longer, the same way every time."""
import re
import sys
import unittest

from processes import main, run

ROUNDS = 40


class ReinforcementLearning(unittest.TestCase):
    def rewards(self, *more):
        status, lines = run(PROGRAM, "--observers", 3, "--max-steps", 120, *more)
        self.assertEqual(status, 0, lines)
        return [float(m[1]) for line in lines if (m := re.fullmatch(r"round=\d+ reward=([\d.]+)", line))]

    def test_learns(self):
        rewards = self.rewards("--rounds", ROUNDS)
        self.assertEqual(len(rewards), ROUNDS)
        begin, end = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
        self.assertLess(begin, 40, rewards)  # the result of random pushes
        self.assertGreater(end, 2 * begin, rewards)

    def test_does_the_same_again(self):
        self.assertEqual(self.rewards("--rounds", 4), self.rewards("--rounds", 4))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
