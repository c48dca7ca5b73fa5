#!/usr/bin/env python3
"""peer_set PROGRAM: replicas die, all idempotent calls are answered, and the other call is not made again."""
import re
import sys
import unittest

from processes import main, run


class PeerSet(unittest.TestCase):
    def test_calls_survive_their_replicas(self):
        status, lines = run(PROGRAM)
        self.assertEqual(status, 0, lines)
        counts = [dict(re.findall(r"(worker\d) answered (\d+)", line)) for line in lines if line.startswith("30 calls:")]
        self.assertEqual([sum(map(int, answers.values())) for answers in counts], [30, 30], lines)
        self.assertEqual(counts[0].keys(), {"worker1", "worker2", "worker3"})
        self.assertLess(sum(int(answers.get("worker2", 0)) for answers in counts), 12)
        self.assertTrue(any("worker2 was lost" in line for line in lines), lines)
        self.assertIn("bought at worker1", lines)
        self.assertIn("peer_lost, it may have been bought", lines)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
