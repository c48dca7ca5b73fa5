"""Runs the programs of examples/python under torchrun."""

import os
import subprocess
import sys
import unittest

FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "python")


class Examples(unittest.TestCase):
    def run_program(self, name, ranks):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
             os.path.join(FOLDER, name)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_ddp(self):
        out = self.run_program("ddp.py", 2)
        self.assertIn("rank 0: loss", out)
        self.assertIn("rank 1: loss", out)

    def test_tensor_parallel(self):
        self.assertIn("rank 1: differs by at most", self.run_program("tensor_parallel.py", 2))

    def test_parameter_server(self):
        out = self.run_program("parameter_server.py", 3)
        self.assertIn("trainer 1: loss", out)
        self.assertIn("trainer 2: loss", out)


if __name__ == "__main__":
    unittest.main()
