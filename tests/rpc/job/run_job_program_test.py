#!/usr/bin/env python3
"""run_job_program_test.py PROGRAM: the processes that run_job() starts, and the processes that others start."""
import os
import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from processes import Program, free_address, main, run, wait_until_gone  # noqa: E402


class StartedByNobody(unittest.TestCase):
    def test_the_options_give_the_number_of_processes(self):
        status, lines = run(PROGRAM)
        self.assertEqual((status, lines), (0, ["3 members, twice the sum of their ranks is 6"]))

    def test_the_command_line_gives_the_number_of_processes(self):
        status, lines = run(PROGRAM, "-n", 2)
        self.assertEqual((status, lines), (0, ["2 members, twice the sum of their ranks is 2"]))

    def test_the_number_of_processes_is_found_among_the_other_arguments(self):
        for arguments, left in ((["arguments", "-m", "3", "-n", "2", "x"], "arguments -m 3 x"),
                                (["arguments", "x", "-n2"], "arguments x"),
                                (["arguments", "-n", "1", "-n", "2", "-name", "--n", "3"], "arguments -name --n 3"),
                                (["arguments", "-n", "2", "--", "-n", "3", "-n4"], "arguments -- -n 3 -n4")):
            with self.subTest(arguments):
                status, lines = run(PROGRAM, *arguments)
                self.assertEqual((status, sorted(lines)), (0, [f"rank {n} of 2: {left}" for n in range(2)]))

    # The system assigns other ports to the other ranks, which listen first.
    def test_the_port_of_the_store_is_not_one_that_the_system_assigns(self):
        jobs = set()
        for _ in range(2):
            status, lines = run(PROGRAM, "variables", "-n", 2)
            self.assertEqual((status, len(lines), len(set(lines))), (0, 2, 1), lines)
            port, job = lines[0].split()
            self.assertIn(int(port), range(15000, 30000))
            jobs.add(job)
        self.assertEqual(len(jobs), 2)

    def test_a_body_with_an_agent_starts_when_all_have_joined(self):
        status, lines = run(PROGRAM, "-n", 3, "agent")
        self.assertEqual((status, sorted(lines)), (0, [f"worker{n} sees worker0 worker1 worker2" for n in range(3)]))

    def test_a_body_may_leave_by_itself(self):
        status, lines = run(PROGRAM, "-n", 2, "left")
        self.assertEqual((status, sorted(lines)), (0, ["rank 0 has left", "rank 1 has left"]))

    def test_a_malformed_number_of_processes(self):
        for wrong in (["-n"], ["-n", "0"], ["-n", "2x"], ["-n", "-1"], ["-n", "9999999"], ["-n2x"], ["-n0"],
                      ["left", "-n"], ["left", "-n", "--", "2"]):
            with self.subTest(wrong):
                status, lines = run(PROGRAM, *wrong)
                self.assertEqual(status, 2, lines)
                self.assertRegex(lines[0], r"^\S+: -n '.*' is not a number of processes from 1 to 1024$")


class Failures(unittest.TestCase):
    def check(self, lines, first, *said):
        for survivor in (0, 2):
            self.assertRegex("\n".join(lines), rf"(?m)^trainer{survivor} \(rank {survivor}\): .*trainer1")
        for line in said:
            self.assertIn(line, lines)
        self.assertNotIn("second line", "\n".join(lines))
        self.assertRegex(lines[-1], rf"^weft: first failure: rank {first}")

    def test_an_exception(self):
        status, lines = run(PROGRAM, "throw")
        self.assertEqual(status, 1)
        self.check(lines, r"[0-2] \(process \d+\) ended with status 1$", "trainer1 (rank 1): no shard 1")

    def test_a_signal(self):
        status, lines = run(PROGRAM, "kill")
        self.assertEqual(status, 128 + signal.SIGKILL)
        self.check(lines, r"1 \(process \d+\) was killed by signal 9 ")

    def test_the_exit_status_of_a_rank(self):
        status, lines = run(PROGRAM, "-n", 1, "exit")
        self.assertEqual(status, 3)
        self.assertRegex("\n".join(lines), r"^weft: first failure: rank 0 \(process \d+\) ended with status 3$")

    def test_the_end_of_the_process_that_started_them(self):
        for number, status in ((signal.SIGTERM, 128 + 15), (signal.SIGINT, 128 + 2), (signal.SIGKILL, -signal.SIGKILL)):
            with self.subTest(number), Program(PROGRAM, "-n", 2, "wait") as job:
                for _ in range(2):
                    job.wait_for("waits")
                processes = job.children()
                self.assertEqual(sorted(processes), ["worker0", "worker1"])
                job.signal(number)
                self.assertEqual(job.process.wait(timeout=20), status)
                wait_until_gone(processes.values(), within=20)


class StartedByOthers(unittest.TestCase):
    def test_a_rank_starts_no_processes(self):
        host, port = free_address().split(":")
        place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": host, "MASTER_PORT": port}
        with Program(PROGRAM, "wait", "-n", 2, env=place) as member:
            member.wait_for("^rank 0 waits$")
            self.assertEqual(member.children(), {})

    def test_a_rank_keeps_its_arguments(self):
        host, port = free_address().split(":")
        place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": host, "MASTER_PORT": port}
        self.assertEqual(run(PROGRAM, "arguments", "-n", 2, "-n3", env=place), (0, ["rank 0 of 1: arguments -n 2 -n3"]))

    def test_a_malformed_environment(self):
        status, lines = run(PROGRAM, env={"RANK": "x", "WORLD_SIZE": "1"})
        self.assertEqual((status, len(lines)), (1, 1), lines)
        self.assertRegex(lines[0], rf"^{os.path.basename(PROGRAM)}: .*RANK='x'")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    main()
