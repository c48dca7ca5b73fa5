#!/usr/bin/env python3
"""batched_server PROGRAM: many requests share a forward, and every client gets its own answers."""
import re
import sys
import unittest

from processes import main, run

CLIENTS, REQUESTS = 3, 100


class BatchedServer(unittest.TestCase):
    def served(self, *more):
        """Checks the clients' lines; requests, forwards, and rows of the largest forward."""
        status, lines = run(PROGRAM, "--clients", CLIENTS, "--requests", REQUESTS, *more)
        self.assertEqual(status, 0, lines)
        for client in range(1, CLIENTS + 1):
            self.assertIn(f"client{client} answers={REQUESTS} right={REQUESTS}", lines)
        found = [m for line in lines if (m := re.fullmatch(r"requests=(\d+) forwards=(\d+) largest=(\d+)", line))]
        self.assertEqual(len(found), 1, lines)
        return [int(number) for number in found[0].groups()]

    def test_many_requests_share_a_forward(self):
        requests, forwards, largest = self.served("--window", 100_000)
        self.assertEqual(requests, CLIENTS * REQUESTS)
        self.assertLess(forwards, requests / 4)  # the 250 rows of one client fill 4 forwards
        self.assertGreater(largest, 4)
        self.assertLessEqual(largest, 64)

    def test_a_request_that_is_a_batch_has_a_separate_forward(self):
        requests, forwards, largest = self.served("--max-rows", 1)
        self.assertEqual(forwards, requests)
        self.assertEqual(largest, 4)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
