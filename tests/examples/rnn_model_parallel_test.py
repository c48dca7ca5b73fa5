#!/usr/bin/env python3
"""rnn_model_parallel PROGRAM: the language model learns, and writes something."""
import re
import sys
import unittest

from processes import main, run


class RnnModelParallel(unittest.TestCase):
    def test_learns(self):
        status, lines = run(PROGRAM, "--steps", 61)
        self.assertEqual(status, 0, lines)
        losses = [float(m[1]) for line in lines if (m := re.fullmatch(r"step=\d+ loss=([\d.]+)", line))]
        self.assertEqual(len(losses), 7, lines)
        self.assertGreater(losses[0], 4)  # ln 76 = 4.33: the loss of an untrained model
        self.assertLess(losses[-1], 2.8)  # a model that knows only the frequencies of characters has a loss of 3.2
        self.assertTrue(any(line.startswith("it writes: GNU GENERAL PUBLIC L") for line in lines), lines)

    def test_a_text_that_is_not_there_is_an_error(self):
        status, lines = run(PROGRAM, "--text", "/nowhere")
        self.assertEqual(status, 1, lines)
        self.assertTrue(any("/nowhere" in line for line in lines), lines)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
