"""Runs the programs of examples/python under torchrun, and the examples whose rank 0 is a C++ program."""

import os
import socket
import subprocess
import sys
import unittest

import weft

FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "python")
# Of the C++ programs: the variable, or the build tree that has the package.
PROGRAMS = os.environ.get("WEFT_EXAMPLES", os.path.join(os.path.dirname(weft.__file__), "..", "..", "examples"))


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

    def run_with_cpp(self, name, variables):
        """Runs the C++ program of examples/NAME as rank 0, and its trainer.py as ranks 1 and 2. Returns what they print."""
        program = os.path.abspath(os.path.join(PROGRAMS, name))
        trainer = os.path.join(FOLDER, "..", name, "trainer.py")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        meeting = {variable: value.format(port) for variable, value in variables.items()}
        ranks = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env={**os.environ, **meeting, "WORLD_SIZE": "3", "RANK": str(rank)})
            for rank, command in enumerate([[program]] + 2 * [[sys.executable, trainer]])
        ]
        for rank in ranks:
            self.addCleanup(rank.kill)
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
        for rank, out in zip(ranks, outputs):
            self.assertEqual(rank.returncode, 0, out)
        return outputs

    def test_python_trainers(self):
        outputs = self.run_with_cpp("python_trainers", {"WEFT_STORE": "tcp://127.0.0.1:{}"})
        self.assertIn("differs from the true one by at most 0.0", outputs[0])
        self.assertIn("trainer 2: loss", outputs[2])

    def test_python_embedding(self):
        for address in ("127.0.0.1", "::1"):
            with self.subTest(address=address):
                outputs = self.run_with_cpp("python_embedding", {"MASTER_ADDR": address, "MASTER_PORT": "{}"})
                self.assertIn("the table has taken 800 updates", outputs[0])
                self.assertIn("trainer 2: loss 0.0", outputs[2])


if __name__ == "__main__":
    unittest.main()
