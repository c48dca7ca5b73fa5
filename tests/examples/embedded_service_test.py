#!/usr/bin/env python3
"""embedded_service PROGRAM: typed calls, a nested call with its deadline, and an orderly end, between processes."""
import os
import pathlib
import signal
import ssl
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

from processes import PATIENCE, Program, free_address, main, run, wait_until_gone


class Services(unittest.TestCase):
    env = {}

    def setUp(self):
        self.rates, rates = self.serve("rates", r"listens at (\S+)$")
        self.market, listens = self.serve("market", r"listens at (\S+), probes and metrics at (\S+)$", rates[1])
        self.address, self.http = listens[1], listens[2]

    def serve(self, what, pattern, *others):
        service = Program(PROGRAM, what, "tcp://127.0.0.1:0", *others, env=self.env)
        self.addCleanup(service.__exit__)
        return service, service.wait_for(pattern)

    def ask(self, what, *arguments, env=None):
        return run(PROGRAM, what, self.address, *arguments, env=self.env if env is None else env)

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()


class EmbeddedService(Services):

    def test_nothing_of_libtorch_is_linked(self):
        libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertRegex(libraries, r"libcapnp|libssl|libc\.so")  # it has listed them
        self.assertNotRegex(libraries, r"lib(torch|c10)")

    def test_a_call_on_the_programs_own_loop(self):
        status, lines = self.ask("last", "WEFT")
        self.assertEqual(status, 0, lines)
        symbol, price = lines[0].split()
        self.assertEqual(symbol, "WEFT")
        self.assertGreaterEqual(float(price), 100)

    def test_a_stream_of_what_the_program_makes(self):
        status, lines = self.ask("follow", "WEFT", "5")
        self.assertEqual((status, len(lines)), (0, 5), lines)
        prices = [float(line.removeprefix("WEFT ")) for line in lines]
        self.assertEqual(prices, [prices[0] + 0.25 * i for i in range(5)])  # none missed, in order

    def test_the_interceptor_sees_every_call(self):
        self.ask("last", "WEFT")
        self.market.wait_for(r"^market\.last for \S+: answered$")
        self.ask("convert", "10", "XYZ")
        self.market.wait_for(r"^market\.convert for \S+: failed$")

    def test_drain_ends_a_stream(self):
        with Program(PROGRAM, "follow", self.address, "WEFT", "1000000") as follower:
            follower.wait_for("^WEFT ")
            self.market.signal(signal.SIGTERM)
            self.assertEqual(self.market.end(), 0)
            self.assertEqual(follower.end(), 1)
            self.assertRegex(follower.lines[-1], "^shut_down: ")

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
        self.rates.signal(signal.SIGSTOP)  # so that the call below stays in flight
        with Program(PROGRAM, "convert", self.address, "8", "EUR") as accepted:
            self.market.wait_for("converting 8 EUR")
            self.market.signal(signal.SIGTERM)
            self.market.wait_for("draining")
            self.assertEqual(self.get("/readyz")[0], 503)
            self.assertEqual(self.get("/livez")[0], 200)
            status, lines = self.ask("convert", "9", "EUR")
            self.assertEqual(status, 1, lines)
            self.assertRegex(lines[-1], "^(shut_down|unavailable): ")
            self.rates.signal(signal.SIGCONT)
            self.assertEqual(accepted.end(), 0, accepted.output())
            self.assertEqual(accepted.lines, ["10"])
        self.assertEqual(self.market.end(), 0)
        self.assertEqual(self.market.lines[-1], "drained")


    def test_probes_and_metrics(self):
        self.assertEqual(self.get("/livez")[0], 200)
        self.assertEqual(self.get("/readyz")[0], 200)
        self.assertEqual(self.ask("convert", "10", "EUR"), (0, ["12.5"]))
        status, text = self.get("/metrics")
        self.assertEqual(status, 200)
        self.assertIn('weft_served_seconds_count{agent="market",method="market.convert"} 1', text)
        self.assertIn('weft_made_seconds_count{agent="market",method="rates.rate"} 1', text)


class KeptRunning(Services):
    """The market calls two processes of the rates, which the launcher keeps running."""

    def setUp(self):
        tool = pathlib.Path(PROGRAM).parents[1] / "bin/weft"
        if not tool.exists():
            self.skipTest("the program weft is not built here")
        self.rates = Program(tool, "launch", "--keep-running", "--backoff", "10ms", "--role", "rates=2", "--rendezvous", free_address(),
                             PROGRAM, "rates")
        self.addCleanup(self.rates.__exit__)
        self.addresses = dict(self.rates.wait_for(r"^\[(rates\d)\] rates\d listens at (\S+)$").groups() for _ in range(2))
        self.market, listens = self.serve("market", r"listens at (\S+), probes and metrics at (\S+)$", *self.addresses.values())
        self.address = listens[1]

    def process_of(self, name):
        [launcher] = self.rates.children().values()  # the process of the launcher that has the workers
        for pid in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            if f"WEFT_NAME={name}".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return int(pid)
        raise AssertionError(f"no process {name}")

    def test_a_killed_process_serves_again(self):
        self.assertEqual(self.ask("convert", "10", "EUR"), (0, ["12.5"]))
        os.kill(self.process_of("rates0"), signal.SIGKILL)
        self.assertEqual(self.ask("convert", "10", "EUR"), (0, ["12.5"]))
        self.rates.wait_for(r"^weft: rates0 \(rank 0\) was killed by signal 9 \(Killed\), and starts again in ")
        self.assertEqual(self.rates.wait_for(r"^\[rates0\] rates0 listens at (\S+)$")[1], self.addresses["rates0"])
        ended = self.process_of("rates1")
        os.kill(ended, signal.SIGTERM)  # it exits with status 0, and is not started again
        wait_until_gone([ended], PATIENCE)
        self.assertEqual(self.ask("convert", "10", "EUR"), (0, ["12.5"]))
        self.rates.wait_for(r"^\[rates0\] rate of EUR$")
        os.kill(self.process_of("rates0"), signal.SIGTERM)
        self.assertEqual(self.rates.end(), 0, self.rates.output())


class WithCertificates(Services):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.make_certificates(folder.name, "rates", "market", "client")
        cls.env = {"WEFT_CERTIFICATES": folder.name}

    @staticmethod
    def make_certificates(folder, *names):
        script = pathlib.Path(__file__).parents[2] / "examples/embedded_service/certificates.sh"
        subprocess.run([script, folder, *names], check=True)

    def test_a_client_with_a_certificate_is_served(self):
        self.assertEqual(self.ask("convert", "10", "EUR"), (0, ["12.5"]))

    def test_the_tool_asks_with_one(self):
        tool = pathlib.Path(PROGRAM).parents[1] / "bin/weft"
        if not tool.exists():
            self.skipTest("the program weft is not built here")
        folder = self.env["WEFT_CERTIFICATES"]
        files = ["--certificate", f"{folder}/client.pem", "--key", f"{folder}/client-key.pem", "--trust", f"{folder}/ca.pem"]
        self.assertEqual(run(tool, "call", self.address, "market.convert", "10", "EUR", *files), (0, ["12.5"]))
        self.assertEqual(run(tool, "call", self.address, "market.convert", "10", "EUR")[0], 3)

    def test_a_client_without_a_certificate_is_refused(self):
        status, lines = self.ask("convert", "10", "EUR", env={})
        self.assertEqual(status, 1, lines)

    def test_a_client_with_a_certificate_of_another_authority_is_refused(self):
        with tempfile.TemporaryDirectory() as other:
            self.make_certificates(other, "client")
            status, lines = self.ask("convert", "10", "EUR", env={"WEFT_CERTIFICATES": other})
            self.assertEqual(status, 1, lines)
            self.assertRegex("\n".join(lines), "permission_denied")

    def certificates(self):
        """The one that the market serves, and the one in its file."""
        host, port = self.address.removeprefix("tcp://").rsplit(":", 1)
        served = ssl.get_server_certificate((host, int(port)), timeout=60)
        file = pathlib.Path(self.env["WEFT_CERTIFICATES"], "market.pem").read_text()
        return served.strip(), file[file.index("-----BEGIN"):].strip()

    def test_certificates_are_replaced_while_it_serves(self):
        old, file = self.certificates()
        self.assertEqual(old, file)
        self.rates.signal(signal.SIGSTOP)  # so that the call below stays in flight
        with Program(PROGRAM, "convert", self.address, "8", "EUR", env=self.env) as accepted:
            self.market.wait_for("converting 8 EUR")
            self.make_certificates(self.env["WEFT_CERTIFICATES"], "market")
            self.market.signal(signal.SIGHUP)
            self.market.wait_for("credentials read anew")
            served, file = self.certificates()
            self.assertEqual(served, file)
            self.assertNotEqual(served, old)
            self.rates.signal(signal.SIGCONT)
            self.assertEqual(accepted.end(), 0, accepted.output())
        self.assertEqual(self.ask("convert", "10", "EUR"), (0, ["12.5"]))


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    main()
