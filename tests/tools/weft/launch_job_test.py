#!/usr/bin/env python3
"""launch_job_test.py WEFT WORKER: jobs of agents under weft launch, on one host and on several (network namespaces)."""
import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from processes import PATIENCE, Program, eventually, free_address, is_gone, main, run, wait_until_gone  # noqa: E402

from hosts import Hosts  # noqa: E402

SLEEPER = "import os, time; print('up', os.getpid(), flush=True); time.sleep(3600)"


def launched(*arguments, env=None):
    return Program(WEFT, "launch", *arguments, env=env)


class OneHost(unittest.TestCase):
    def test_agents_meet(self):
        status, lines = run(WEFT, "launch", "-n", "3", WORKER, "meet")
        self.assertEqual((status, sorted(lines)),
                         (0, [f"[{n}] worker{n} met worker0=0 worker1=1 worker2=2" for n in range(3)]))

    def test_the_first_failure_is_not_what_it_did_to_the_others(self):
        status, lines = run(WEFT, "launch", "-n", "3", WORKER, "meet", "1")
        self.assertEqual(status, 9, lines)
        self.assertIn("weft: first failure: rank 1 ended with status 9", lines)

    def test_trainers_are_added_without_a_rank(self):
        with launched("--elastic", "--role", "server=2", "--role", "trainer=1", WORKER, "train", "3") as job:
            store = job.wait_for(r"weft launch --join (tcp://\S+) PROGRAM")[1]
            for server in range(2):
                job.wait_for(r"\[server\d\] pushed by trainer0")
            free = {name: "" for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
            with Program(WORKER, "train", "3", env={**free, "WEFT_ELASTIC_WORLD": "1", "WEFT_STORE": store,
                                                    "WEFT_ROLE": "trainer"}) as alone, \
                    launched("--join", store, "--role", "trainer=1", WORKER, "train", "3") as more:
                for server in range(4):
                    job.wait_for(r"pushed by trainer-[0-9a-f]{16}$")
                alone.wait_for(r"^trainer-\w+ trained")
                more.wait_for(r"^\[trainer0\] trainer-\w+ trained")
                self.assertEqual((alone.end(), more.end()), (0, 0))
            self.assertEqual(job.end(), 0, job.output())
            self.assertIn("[trainer0] trainer0 trained", job.lines)


class KeepRunning(unittest.TestCase):
    """A service process is killed while a client calls by a PeerSet. A call that hangs fails with deadline_exceeded after 10 s."""

    def serve(self, workers, *command):
        address = free_address()
        self.services = launched("--keep-running", "--backoff", "10ms", "--plain", "-n", workers, "--rendezvous", address, *command)
        self.addCleanup(self.services.__exit__)
        host, port = address.split(":")
        return [f"tcp://{host}:{int(port) + rank}" for rank in range(workers)]

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)
        self.services.wait_for(r"^weft: rank 0 was killed by signal 9 \(Killed\), and starts again in ")

    def end(self, services):
        services.signal(signal.SIGTERM)
        self.assertEqual(services.end(), 128 + signal.SIGTERM)

    def failures(self, client):
        return {line.removeprefix("failed: ") for line in client.lines if line.startswith("failed: ")}

    def test_calls_go_to_another_process_until_it_serves_again(self):
        addresses = self.serve(2, WORKER, "serve")
        for _ in addresses:
            self.services.wait_for("^serves$")
        with Program(WORKER, "call", *addresses) as client:
            pids = {match[1]: int(match[2]) for match in (client.wait_for(r"^(worker\d) (\d+)$") for _ in range(2))}
            self.assertEqual(set(pids), {"worker0", "worker1"})
            for _ in range(3):
                before = len(client.lines)
                self.kill(pids["worker0"])
                pid = int(client.wait_for(r"^worker0 (\d+)$")[1])
                self.assertNotEqual(pid, pids["worker0"])
                self.assertEqual(self.failures(client), set(), client.output())
                self.assertEqual(len(client.lines), before + 1, client.output())  # worker1 is the same process
                pids["worker0"] = pid
        self.end(self.services)

    def test_without_another_process_calls_fail_until_it_serves_again(self):
        [address] = self.serve(1, WORKER, "serve")
        with Program(WORKER, "call", address) as client:
            pid = int(client.wait_for(r"^worker0 (\d+)$")[1])
            for _ in range(3):
                self.kill(pid)
                pid = int(client.wait_for(r"^worker0 (\d+)$")[1])
            self.assertLessEqual(self.failures(client), {"unavailable", "peer_lost"}, client.output())
        self.end(self.services)

    def test_a_member_of_an_elastic_world_keeps_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            script = 'echo "pid of $WEFT_NAME: $$"; exec "$0" elastic "$1"'
            self.serve(2, "--elastic", "--store", f"file://{folder}/store", "--detection", "500ms", "sh", "-c", script, WORKER, f"{folder}/done")
            pid = int(self.services.wait_for(r"^pid of worker0: (\d+)$")[1])
            for name in ("worker0", "worker1"):  # in the order in which they have joined
                self.services.wait_for(r"^worker1 of rank \S+ worker[01] joined$")
            os.kill(pid, signal.SIGKILL)
            self.services.wait_for(r"^worker1 of rank \S+ worker0 lost$")
            self.services.wait_for(r"^worker1 of rank \S+ worker0 joined$")
            pathlib.Path(folder, "done").touch()
            self.assertEqual(self.services.end(), 0, self.services.output())

    def test_a_client_in_the_launch_finds_it_again(self):
        script = '[ $RANK = 1 ] || exec "$0" serve; exec "$0" call tcp://$MASTER_ADDR:$MASTER_PORT'
        self.serve(2, "sh", "-c", script, WORKER)
        pid = int(self.services.wait_for(r"^worker0 (\d+)$")[1])
        self.kill(pid)
        self.assertNotEqual(int(self.services.wait_for(r"^worker0 (\d+)$")[1]), pid)
        self.assertLessEqual(self.failures(self.services), {"unavailable", "peer_lost"}, self.services.output())
        self.end(self.services)


class SeveralHosts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        secret = pathlib.Path(folder.name) / "secret"
        secret.touch(mode=0o600)
        secret.write_text("a secret that nobody can guess\n")
        self.secret = {"WEFT_SECRET": str(secret)}
        if problem := Hosts.missing():
            self.skipTest(problem)
        self.hosts = Hosts(2)
        self.addCleanup(self.hosts.close)

    def launch(self, host, *arguments, **options):
        return self.hosts.run(host, WEFT, "launch", "--nnodes", 2, "--node-rank", host, "--rendezvous",
                              f"{self.hosts.addresses[0]}:7000", *arguments, **options)

    def test_agents_of_all_hosts_meet(self):
        with self.launch(0, "-n", "2", WORKER, "meet", env=self.secret) as first, \
                self.launch(1, "-n", "1", WORKER, "meet", env=self.secret) as second:
            self.assertEqual((first.end(), second.end()), (0, 0), first.output() + second.output())
            everybody = "worker0=0 worker1=1 worker2=2"
            self.assertEqual(sorted(first.lines), [f"[{n}] worker{n} met {everybody}" for n in range(2)])
            self.assertEqual(second.lines, [f"[2] worker2 met {everybody}"])

    def test_the_launchers_secret_is_the_workers_too(self):
        [secret] = self.secret.values()
        with self.launch(0, "--secret", secret, WORKER, "meet") as first, \
                self.launch(1, "--secret", secret, WORKER, "meet") as second:
            self.assertEqual((first.end(), second.end()), (0, 0), first.output() + second.output())

    def test_roles_continue_over_hosts(self):
        code = "import os; print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'WEFT_NAME', 'GROUP_RANK', 'MASTER_ADDR')))"
        with self.launch(0, "--insecure", "--role", "ps=1", "--role", "trainer=1", sys.executable, "-c", code) as first, \
                self.launch(1, "--insecure", "--role", "trainer=2", sys.executable, "-c", code) as second:
            self.assertEqual((first.end(), second.end()), (0, 0), first.output() + second.output())
            self.assertEqual(sorted(first.lines), ["[ps0] 0 4 ps0 0 10.98.7.1", "[trainer0] 1 4 trainer0 0 10.98.7.1"])
            self.assertEqual(sorted(second.lines), ["[trainer1] 2 4 trainer1 1 10.98.7.1", "[trainer2] 3 4 trainer2 1 10.98.7.1"])

    def test_without_credentials_it_is_refused(self):
        with self.launch(1, "true") as launcher:
            self.assertEqual(launcher.end(), 2)
            self.assertIn("insecure", launcher.output())

    def running(self, code=SLEEPER, *arguments):
        """A launcher on each host, with the process of its worker."""
        programs = [self.launch(host, "--insecure", *arguments, sys.executable, "-c", code) for host in range(2)]
        for program in programs:
            self.addCleanup(program.__exit__)
        return programs, [int(program.wait_for(r"up (\d+)")[1]) for program in programs]

    def test_a_failure_ends_the_workers_of_all_hosts(self):
        for failing in (0, 1):
            programs, pids = self.running()
            os.kill(pids[failing], signal.SIGKILL)
            for host, program in enumerate(programs):
                self.assertEqual(program.end(), 137, program.output())
                where = "" if host == failing else f" on host {failing}"
                self.assertIn(f"first failure: rank {failing}{where} was killed by signal 9", program.output())
            self.assertTrue(all(map(is_gone, pids)))

    def test_a_failure_on_a_host_whose_own_workers_have_ended(self):
        code = SLEEPER.replace("time.sleep", "os.environ['RANK'] == '1' and time.sleep")
        programs, pids = self.running(code)
        wait_until_gone(pids[:1], PATIENCE)
        os.kill(pids[1], signal.SIGKILL)
        self.assertEqual([program.end() for program in programs], [137, 137])

    def test_an_interrupt_ends_the_workers_of_all_hosts(self):
        programs, pids = self.running()
        programs[1].signal(signal.SIGINT)
        self.assertEqual([program.end() for program in programs], [130, 130])
        self.assertIn("the launcher on host 1 was ended by signal 2", programs[0].output())
        self.assertTrue(all(map(is_gone, pids)))

    def test_unread_output_ends_the_workers_of_all_hosts(self):
        code = "import os; os.write(2, b'up %d\\n' % os.getpid())\nwhile True: print('x' * 1000, flush=True)"
        reader, writer = os.pipe()
        with self.launch(0, "--insecure", sys.executable, "-c", code, stdout=writer) as first, \
                self.launch(1, "--insecure", sys.executable, "-c", SLEEPER) as other:
            os.close(writer)
            pids = [int(program.wait_for(r"up (\d+)")[1]) for program in (first, other)]
            os.close(reader)
            self.assertEqual([first.end(), other.end()], [128 + signal.SIGPIPE] * 2, other.output())
            self.assertIn("first failure: the launcher on host 0 has ended: its output is no longer read", other.output())
            self.assertTrue(all(map(is_gone, pids)))

    def test_a_launcher_that_dies_ends_the_others(self):
        for dying in (0, 1):
            programs, pids = self.running()
            [below] = programs[dying].children().values()
            os.kill(below, signal.SIGKILL)
            self.assertEqual(programs[dying].end(), 137)
            other = programs[1 - dying]
            self.assertEqual(other.end(), 1)
            self.assertRegex(other.output(), "first failure: a launcher was lost: .*host" + str(dying))
            self.assertTrue(all(map(is_gone, pids)))

    def test_launchers_survive_resets_and_a_pulled_cable(self):
        with tempfile.TemporaryDirectory() as folder:
            end = pathlib.Path(folder) / "end"
            programs, pids = self.running(SLEEPER.replace("time.sleep(3600)", f"[time.sleep(0.1) for _ in iter(lambda: os.path.exists({str(end)!r}), True)]"))
            for host in (0, 1, 0):
                if not self.hosts.reset_connections(host):
                    self.skipTest("`ss -K` is missing, or the kernel cannot end connections")
                time.sleep(1)  # a second reset of one connection would test nothing new
            self.hosts.cable(1, up=False)
            time.sleep(5)  # the test measures the time during which the cable is disconnected
            self.hosts.cable(1, up=True)
            self.assertFalse(any(map(is_gone, pids)), programs[0].output() + programs[1].output())
            end.touch()
            self.assertEqual([program.end() for program in programs], [0, 0], programs[0].output() + programs[1].output())

    def test_an_interrupt_while_they_meet(self):
        for host in (0, 1):
            with self.launch(host, "--insecure", "true") as alone:
                eventually("the launcher has its second process", alone.children)
                alone.signal(signal.SIGINT)
                self.assertEqual(alone.end(), 130)


if __name__ == "__main__":
    WEFT, WORKER = map(os.path.abspath, sys.argv[1:])
    main(argv=sys.argv[:1], verbosity=2)
