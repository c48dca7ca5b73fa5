#!/usr/bin/env python3
"""parameter_server PROGRAM: a run that loses a process ends within seconds, everywhere, with an error that names it."""
import os
import signal
import sys
import unittest

from processes import Program, main, run, wait_until_gone

SECONDS = 25  # less than the heartbeat timeout, 30 s: silence must not end the run. Usually a fraction of one


class Failure(unittest.TestCase):
    def setUp(self):
        self.job = Program(PROGRAM, "--epochs", 1000)
        self.addCleanup(self.job.__exit__)
        for trainer in ("trainer1", "trainer2"):
            # The first line of a trainer is printed at its first step. The two lines are printed in either order.
            if not any(line.startswith(trainer) for line in self.job.lines):
                self.job.wait_for(rf"^{trainer} \[")
        self.processes = self.job.children()
        self.assertEqual(sorted(self.processes), ["worker0", "worker1", "worker2"])

    def check_loss_of(self, lost, rank, survivors):
        os.kill(self.processes[f"worker{rank}"], signal.SIGKILL)
        self.assertEqual(self.job.end(within=SECONDS), 128 + signal.SIGKILL)
        wait_until_gone(self.processes.values(), within=SECONDS)
        for survivor in survivors:
            self.assertRegex(self.job.output(), rf"(?m)^{survivor} \(rank \d\): .*{lost}", f"{survivor} does not say what it lost")
        self.assertRegex(self.job.lines[-1], rf"^weft: first failure: rank {rank} .* was killed by signal 9")

    def test_the_server_is_killed(self):
        self.check_loss_of("server", 0, ["trainer1", "trainer2"])

    def test_a_trainer_is_killed(self):
        self.check_loss_of("trainer2", 2, ["server", "trainer1"])

    def test_the_launcher_is_killed(self):
        self.job.signal(signal.SIGKILL)
        wait_until_gone(self.processes.values(), within=SECONDS)

    def test_the_launcher_is_terminated(self):
        self.job.signal(signal.SIGTERM)
        self.assertEqual(self.job.end(within=SECONDS), 128 + signal.SIGTERM)
        wait_until_gone(self.processes.values(), within=SECONDS)
        self.assertEqual(self.job.lines[-1], "weft: stopped by signal 15 (Terminated)")


class NoData(unittest.TestCase):
    def test_reports_what_to_do(self):
        status, lines = run(PROGRAM, "--data", "/nowhere")
        self.assertEqual(status, 1)
        self.assertRegex("\n".join(lines), r"trainer([12]) \(rank \1\): /nowhere/train\S* does not exist: install the package")
        self.assertRegex(lines[-1], "^weft: first failure: rank [12] ")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
