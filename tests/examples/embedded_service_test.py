#!/usr/bin/env python3
"""embedded_service PROGRAM: typed calls, a nested call with its deadline, and an orderly end, between processes."""
import os
import signal
import sys
import unittest

from processes import Program, run


class EmbeddedService(unittest.TestCase):
    def setUp(self):
        self.rates, rates = self.serve("rates")
        self.market, self.address = self.serve("market", rates)

    def serve(self, what, *others):
        service = Program(PROGRAM, what, "tcp://127.0.0.1:0", *others)
        self.addCleanup(service.__exit__)
        return service, service.wait_for(r"listens at (\S+)")[1]

    def ask(self, what, *arguments):
        return run(PROGRAM, what, self.address, *arguments)

    def test_a_call_on_the_programs_own_loop(self):
        status, lines = self.ask("last", "WEFT")
        self.assertEqual(status, 0, lines)
        symbol, price = lines[0].split()
        self.assertEqual(symbol, "WEFT")
        self.assertGreaterEqual(float(price), 100)

    def test_a_nested_call(self):
        self.assertEqual(self.ask("convert", "10", "EUR"), (0, ["12.5"]))
        self.assertEqual(self.rates.wait_for("^rate of .*")[0], "rate of EUR")

    def test_the_deadline_is_handed_on(self):
        self.assertEqual(self.ask("convert", "10", "EUR", "30000"), (0, ["12.5"]))
        self.assertEqual(self.rates.wait_for("^rate of .*")[0], "rate of EUR, within a deadline")

    def test_too_late(self):
        self.rates.signal(signal.SIGSTOP)
        status, lines = self.ask("convert", "10", "EUR", "300")
        self.assertEqual(status, 1)
        self.assertRegex(lines[-1], "^deadline_exceeded: ")

    def test_an_error_of_the_nested_call_keeps_its_kind(self):
        status, lines = self.ask("convert", "10", "XYZ")
        self.assertEqual(status, 1)
        self.assertRegex(lines[-1], "^not_found: .*XYZ")

    def test_drain_loses_no_accepted_call(self):
        self.rates.signal(signal.SIGSTOP)  # so that the call below stays under way
        with Program(PROGRAM, "convert", self.address, "8", "EUR") as accepted:
            self.market.wait_for("converting 8 EUR")
            self.market.signal(signal.SIGTERM)
            self.market.wait_for("draining")
            status, lines = self.ask("convert", "9", "EUR")
            self.assertEqual(status, 1, lines)
            self.assertRegex(lines[-1], "^(shut_down|unavailable): ")
            self.rates.signal(signal.SIGCONT)
            self.assertEqual(accepted.end(), 0, accepted.output())
            self.assertEqual(accepted.lines, ["10"])
        self.assertEqual(self.market.end(), 0)
        self.assertEqual(self.market.lines[-1], "drained")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
