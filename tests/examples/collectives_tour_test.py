#!/usr/bin/env python3
"""collectives_tour PROGRAM: each part's lines, for several numbers of ranks, however these are started."""
import os
import pathlib
import re
import sys
import unittest

from processes import Program, free_address, main, succeed


def losses(lines):
    return {int(m[1]): float(m[2]) for line in lines if (m := re.fullmatch(r"step=(\d+) loss=([\d.]+)", line))}


class CollectivesTour(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.alone = losses(succeed(PROGRAM, "--alone"))

    def check(self, lines, ranks):
        """All that rank 0 says; others say nothing."""
        last, numbers, even = ranks - 1, list(range(1, ranks + 1)), range(0, ranks, 2)
        self.assertEqual([line for line in lines if not line.startswith("step=")], [
            *([f"token: {sum(range(ranks))} after {ranks} ranks",
               f"neighbours: rank 0 has {[last] * 3} of rank {last}"] if ranks > 1 else []),
            f"all_reduce: the sum is {[sum(numbers)] * 2}, the largest {[ranks] * 2}",
            "broadcast: [1, 1]",
            f"all_gather: {numbers}",
            f"split: rank 0 is one of {len(even)}, whose ranks add up to {sum(even)}",
            f"ring: 1000003 numbers, as all_reduce has them on {ranks} of {ranks} ranks",
            f"parameters: those of rank 0 on {ranks} of {ranks} ranks",
        ])
        learnt = losses(lines)
        self.assertEqual(learnt.keys(), self.alone.keys())
        for step, loss in self.alone.items():  # equal except for the order in which gradients are summed
            self.assertAlmostEqual(learnt[step], loss, delta=1e-3, msg=f"step {step}")
        self.assertGreater(learnt[0], 0.6)  # ln 2 = 0.69: the loss of an untrained model
        self.assertLess(learnt[max(learnt)], learnt[0] / 4)

    def test_four_ranks(self):
        self.check(succeed(PROGRAM), 4)

    def test_other_numbers_of_ranks(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                self.check(succeed(PROGRAM, "--ranks", ranks), ranks)

    def test_ranks_by_variables_alone(self):
        host, port = free_address().split(":")
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port}
        with Program(PROGRAM, env={**place, "RANK": "0"}) as first, Program(PROGRAM, env={**place, "RANK": "1"}) as other:
            self.assertEqual((first.end(), other.end()), (0, 0), first.lines + other.lines)
            self.assertEqual(other.lines, [])
            self.check(first.lines, 2)

    def test_ranks_by_the_variables_of_batch_systems(self):
        openmpi = [{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"} for rank in (0, 1)]
        slurm = [{"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"} for rank in (0, 1)]
        for first, other in (openmpi, slurm):
            with self.subTest(first):
                host, port = free_address().split(":")
                place = {"RANK": "", "MASTER_ADDR": host, "MASTER_PORT": port}
                with Program(PROGRAM, env={**place, **first}) as rank0, Program(PROGRAM, env={**place, **other}) as rank1:
                    self.assertEqual((rank0.end(), rank1.end()), (0, 0), rank0.lines + rank1.lines)
                    self.assertEqual(rank1.lines, [])
                    self.check(rank0.lines, 2)

    def test_ranks_by_the_launcher(self):
        weft = pathlib.Path(PROGRAM).parents[1] / "bin/weft"
        if not weft.exists():
            self.skipTest("the program weft is not built here")
        self.check(succeed(weft, "launch", "--plain", "-n", 4, PROGRAM), 4)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    main()
