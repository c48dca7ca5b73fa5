#!/usr/bin/env python3
"""device_mesh PROGRAM: a mesh of 2 x 2 ranks has the losses of one process."""
import re
import sys
import unittest

from processes import main, run


def trained(*arguments):
    status, lines = run(PROGRAM, *arguments)
    assert status == 0, lines
    losses = [float(m[1]) for line in lines if (m := re.fullmatch(r"step \d+: loss ([\d.]+)", line))]
    return losses, {line for line in lines if line.startswith("rank")}


class DeviceMesh(unittest.TestCase):
    def test_trains_as_one_process_does(self):
        losses, ranks = trained()
        self.assertEqual(ranks, {f"rank {2 * data + tensor}: data {data}, tensor {tensor}, has 16 of the 32 hidden features"
                                 for data in range(2) for tensor in range(2)})
        alone, _ = trained("-n", 1)
        self.assertEqual(len(losses), 5)
        for of_mesh, of_one in zip(losses, alone, strict=True):
            self.assertAlmostEqual(of_mesh, of_one, delta=2e-6)
        self.assertLess(losses[-1], losses[0] / 2)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
