#!/usr/bin/env python3
"""launch_elastic_test.py WEFT WORKER: elastic jobs of weft launch with real processes, on hosts that are simulated by a script."""
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from processes import PATIENCE, FolderTest, Program, eventually, free_address, is_gone, main, run, wait_until_gone  # noqa: E402

from hosts import Hosts  # noqa: E402

# A worker that runs until the file in its first argument exists.
SLEEPER = r"""
import os, sys, time
place = os.environ["WEFT_NAME"], os.environ.get("FAKE_HOST", "here"), os.environ["LOCAL_RANK"]
os.write(1, b"up %d %s\n" % (os.getpid(), " ".join(place).encode()))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
UP = r"up (\d+) (\w+) (\w+) (\d)$"


class KubernetesApi(http.server.ThreadingHTTPServer):
    """As much of Kubernetes' API server as `kubectl get pods` asks for. ready: pods by name, and whether they are."""

    def __init__(self, label, ready, deleted):
        pods = [{"metadata": {"name": name, "namespace": "default"} |
                 ({"deletionTimestamp": "2026-11-26T21:04:00Z"} if name in deleted else {}),
                 "status": {"conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": str(is_ready)}]}}
                for name, is_ready in ready.items()]
        resource = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]}
        answers = {"/api": {"kind": "APIVersions", "versions": ["v1"]},
                   "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
                   "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [resource]},
                   "/api/v1/namespaces/default/pods": {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path, _, query = self.path.partition("?")
                known = path in answers and (not path.endswith("/pods") or f"labelSelector={label}" in query)
                body = json.dumps(answers[path] if known else {"kind": "Status", "status": "Failure", "code": 404}).encode()
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def config(self):
        """A kubeconfig as JSON, which is YAML."""
        named = {"clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}],
                 "contexts": [{"name": "x", "context": {"cluster": "x", "user": ""}}]}
        return json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x", **named})

    def close(self):
        self.shutdown()
        self._thread.join()
        self.server_close()


class Elastic(FolderTest):
    def etcd(self):
        """The URL of a job in an etcd of this test."""
        if not shutil.which("etcd"):
            self.skipTest("etcd is not installed")
        address, peers = free_address(), free_address()
        etcd = Program("etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", f"http://{address}", "--advertise-client-urls",
                       f"http://{address}", "--listen-peer-urls", f"http://{peers}", "--initial-advertise-peer-urls",
                       f"http://{peers}", "--initial-cluster", f"default=http://{peers}")
        self.addCleanup(etcd.__exit__)
        etcd.wait_for("serving.*client|ready to serve")
        return f"etcd://{address}/job"

    def setUp(self):
        super().setUp()
        self.done = self.folder / "done"
        # Replaces ssh to hosts a, b, ..., all of which are this host.
        self.rsh = self.script("rsh", 'FAKE_HOST=$1 exec sh -c "$2"')

    def script(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def set_hosts(self, *hosts):
        new = self.folder / "new"
        new.write_text("".join(f"{host}\n" for host in hosts))
        new.rename(self.folder / "hosts")

    def launch(self, *arguments, code=SLEEPER, **options):
        """A launcher of Python workers that are no agents."""
        program = Program(WEFT, "launch", "--start-timeout", "0", *arguments, sys.executable, "-c", code, self.done, **options)
        self.addCleanup(program.__exit__)
        return program

    def discovering(self, *hosts, options=()):
        self.set_hosts(*hosts)
        return self.launch("--discovery", f"cat {self.folder}/hosts", "--poll", "0.1s", "--rsh", self.rsh, "--rendezvous",
                           free_address(), *options)

    def up(self, program, number=1):
        """The next workers that say that they run: (name, host, slot): pid."""
        found = {}
        for _ in range(number):
            pid, *place = program.wait_for(UP).groups()
            found[tuple(place)] = int(pid)
        return found

    def end(self, program, status=0):
        self.done.touch()
        self.assertEqual(program.end(), status, program.output())


class Discovery(Elastic):
    def test_hosts_are_added_and_removed(self):
        job = self.discovering("a:2", options=("--min", "2", "--max", "4"))
        first = self.up(job, 2)
        self.assertEqual(set(first), {("worker0", "a", "0"), ("worker1", "a", "1")})
        self.set_hosts("a:2", "b:2")
        second = self.up(job, 2)
        self.assertEqual(set(second), {("worker2", "b", "0"), ("worker3", "b", "1")})
        self.set_hosts("b:2")
        wait_until_gone(first.values(), PATIENCE)
        self.assertFalse(any(map(is_gone, second.values())), "survivors go on")
        self.set_hosts("b:2", "c:1")
        self.assertEqual(set(self.up(job)), {("worker0", "c", "0")}, "the lowest free rank")
        self.end(job)

    def test_a_first_discovery_that_fails_ends_the_job(self):
        job = self.launch("--discovery", "echo no hosts >&2; exit 3", "--max", "2")
        self.assertEqual(job.end(), 1)
        self.assertIn("no hosts", job.lines)
        self.assertIn("weft: the job has failed: the first discovery of hosts failed: 'echo no hosts >&2; exit 3' ended with status 3",
                      job.lines)

    def test_a_later_discovery_that_fails_is_reported_once(self):
        job = self.discovering("localhost:1", options=("--max", "4"))
        self.up(job)
        self.set_hosts("a:many")
        job.wait_for("the discovery of hosts failed, and the known hosts are kept: .* printed 'a:many': the number of slots")
        self.set_hosts("localhost:2")
        self.up(job)
        self.assertEqual(job.output().count("discovery of hosts failed"), 1)
        self.end(job)

    def test_slurm_is_asked_for_the_nodes_of_the_job(self):
        tools = self.folder / "bin"
        tools.mkdir()
        self.script("bin/squeue", '[ "$*" = "--noheader --jobs=7 --format=%N" ] && echo "n[1-2]"')
        self.script("bin/scontrol", '[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"')
        job = self.launch("--discovery", "slurm", "--max", "2", "--rsh", self.rsh, "--rendezvous", free_address(),
                          env={"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"})
        self.assertEqual({host for _, host, _ in self.up(job, 2)}, {"n1", "n2"})
        self.end(job)

    def test_the_script_of_an_mpi_job_lists_the_hosts(self):
        for line, slots in (("echo train-worker-{}.train.default.svc", 1), ("echo train-worker-{}:2", 2)):  # v2beta1 and v1
            script = self.script("discover_hosts.sh", "\n".join(line.format(n) for n in range(2)))
            rsh = self.script("ssh", 'FAKE_HOST=${1##*worker-}; FAKE_HOST=w${FAKE_HOST%%.*} exec sh -c "$2"')
            job = self.launch("--discovery", script, "--max", "8", "--rsh", rsh, "--rendezvous", free_address())
            self.assertEqual(set(self.up(job, 2 * slots)), {(f"worker{slots * host + slot}", f"w{host}", str(slot))
                                                            for host in range(2) for slot in range(slots)})
            self.end(job)
            self.done.unlink()

    def test_outside_of_slurm_there_is_no_such_job(self):
        job = self.launch("--discovery", "slurm", "--max", "2", env={"SLURM_JOB_ID": ""})
        self.assertEqual(job.end(), 1)
        self.assertIn("SLURM_JOB_ID: is not set: this is no Slurm job", job.output())

    def test_kubernetes_is_asked_for_pods_that_are_ready(self):
        if not shutil.which("kubectl"):
            self.skipTest("kubectl is not installed")
        api = KubernetesApi("app%3Dtrain", {"p1": True, "p2": False, "p3": True, "p4": True}, ["p4"])
        self.addCleanup(api.close)
        config = self.folder / "config"
        config.write_text(api.config())
        job = self.launch("--discovery", "kubernetes:app=train", "--max", "8", "--slots", "2", "--rsh", self.rsh, "--rendezvous",
                          free_address(), env={"KUBECONFIG": str(config), "HOME": str(self.folder)})
        self.assertEqual([host for _, host, _ in sorted(self.up(job, 4))], ["p1", "p1", "p3", "p3"])
        self.end(job)


class Failures(Elastic):
    def test_a_worker_that_dies_is_replaced(self):
        job = self.launch("--max", "2")
        pids = self.up(job, 2)
        os.kill(pids["worker1", "here", "1"], signal.SIGKILL)
        job.wait_for(r"weft: rank 1 on localhost was killed by signal 9")
        self.assertEqual(set(self.up(job)), {("worker1", "here", "1")})
        self.assertFalse(is_gone(pids["worker0", "here", "0"]))
        self.end(job)

    def test_a_worker_of_another_host_that_dies_is_replaced(self):
        job = self.discovering("a:1", "b:1", options=("--max", "2"))
        pids = self.up(job, 2)
        os.kill(pids["worker1", "b", "0"], signal.SIGKILL)
        job.wait_for(r"weft: rank 1 on b ended with status 137")
        self.assertEqual(set(self.up(job)), {("worker1", "b", "0")})
        self.end(job)

    def test_what_a_dead_worker_leaves_is_ended_before_its_successor_starts(self):
        code = SLEEPER.replace("import os, sys, time", r"""
import os, sys, time
child = os.fork()
if child == 0:
    os.write(1, b"child %d\n" % os.getpid())
    time.sleep(3600)
""")
        job = self.launch("--max", "2", code=code)
        children = [int(job.wait_for(r"child (\d+)")[1]) for _ in range(2)]
        text = pathlib.Path(f"/proc/{children[0]}/stat").read_text()
        os.kill(int(text.rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
        children.append(int(job.wait_for(r"child (\d+)")[1]))
        self.assertTrue(is_gone(children[0]))
        self.assertFalse(is_gone(children[1]))
        self.end(job)
        self.assertTrue(all(map(is_gone, children)))

    def test_a_program_that_always_fails_blacklists_its_host(self):
        status, lines = run(WEFT, "launch", "--max", "1", sys.executable, "-c", "import sys; sys.exit('wrong data')")
        self.assertEqual(status, 1)
        self.assertEqual(sum("rank 0 on localhost ended with status 1; its last errors:" in line for line in lines), 3, lines)
        self.assertIn("    wrong data", lines)
        self.assertRegex("\n".join(lines), "localhost is blacklisted for 1")
        self.assertRegex(lines[-1], "the job has failed: all hosts are blacklisted: localhost")

    def test_the_minimum_is_not_reached_in_time(self):
        job = self.launch("--min", "3", "--max", "3", "--hosts", "localhost:2", "--elastic-timeout", "0.3s")
        self.assertEqual(job.end(), 1)
        self.assertEqual(job.lines, ["weft: the job has failed: fewer than 3 workers for 300 ms: 0 ready, localhost (2 slots)"])

    def test_a_program_that_never_joins_is_stopped(self):
        job = Program(WEFT, "launch", "--max", "1", "--start-timeout", "0.2s", "--host-failures", "1", "sleep", "3600")
        with job:
            self.assertEqual(job.end(), 1)
            self.assertIn("weft: rank 0 on localhost was not ready 200 ms after its start", job.lines)

    def test_a_host_that_cannot_be_reached_is_blacklisted(self):
        broken = self.script("broken", 'echo "no route to $1" >&2; exit 255')
        self.set_hosts("localhost:1", "b:1")
        job = self.launch("--discovery", f"cat {self.folder}/hosts", "--max", "2", "--rsh", broken, "--rendezvous", free_address(),
                          "--host-failures", "2", "--cooldown", "0")
        job.wait_for("rank 1 on b ended with status 255; its last errors:")
        job.wait_for("^    no route to b")
        job.wait_for("b is blacklisted for good")
        self.end(job)


class Ends(Elastic):
    def test_the_first_success_ends_the_job(self):
        code = SLEEPER.replace("while not", "while os.environ['WEFT_NAME'] != 'worker0' or not")
        job = self.launch("--max", "3", "--finish-wait", "0.2s", code=code)
        pids = self.up(job, 3)
        self.end(job)
        self.assertIn("weft: rank 0 on localhost has succeeded: the other workers have 200 ms to finish", job.lines)
        self.assertTrue(all(map(is_gone, pids.values())))

    def test_a_worker_that_is_stopped_may_finish_what_it_does(self):
        code = """
import os, signal, sys, time
def stop(*_):
    print("commit", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
""" + SLEEPER
        self.set_hosts("a:1", "b:1")
        job = self.launch("--discovery", f"cat {self.folder}/hosts", "--poll", "0.1s", "--max", "2", "--rsh", self.rsh, "--rendezvous",
                          free_address(), code=code)
        pids = self.up(job, 2)
        self.set_hosts("a:1")
        job.wait_for(r"^\[1\] commit")
        wait_until_gone([pids["worker1", "b", "0"]], PATIENCE)
        self.assertFalse(is_gone(pids["worker0", "a", "0"]), "no success of the job")
        self.end(job)

    def test_an_interrupt_ends_all_workers(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            job = self.discovering("localhost:1", "b:1", options=("--max", "2"))
            pids = self.up(job, 2)
            job.signal(number)
            self.assertEqual(job.end(), status, job.output())
            self.assertTrue(all(map(is_gone, pids.values())))
            self.assertNotIn("has failed", job.output())

    def test_the_end_of_its_input_ends_an_attached_worker(self):
        command = [WEFT, "launch", "--attached", "--", sys.executable, "-c", SLEEPER, str(self.done)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "WEFT_NAME": "worker0", "LOCAL_RANK": "0"}) as attached:
            pid = int(attached.stdout.readline().split()[1])
            self.assertFalse(is_gone(pid))
            attached.stdin.close()
            self.assertEqual(attached.wait(timeout=PATIENCE), 143)
            self.assertTrue(is_gone(pid))

    def test_the_status_of_an_attached_worker_is_passed_on(self):
        for code, status in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("pass", 0)):
            open_input, writer = os.pipe()
            try:
                ended = subprocess.run([WEFT, "launch", "--attached", "--", sys.executable, "-c", code], stdin=open_input,
                                       capture_output=True, text=True, timeout=PATIENCE)
            finally:
                os.close(open_input)
                os.close(writer)
            self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (status, "", ""))

    def test_a_workers_output_is_appended_to_the_log_of_its_predecessor(self):
        logs = self.folder / "logs"
        job = Program(WEFT, "launch", "--max", "1", "--logs", logs, sys.executable, "-c", "print('once'); raise SystemExit(1)")
        with job:
            self.assertEqual(job.end(), 1)
        self.assertEqual((logs / "worker0.out").read_text(), "once\n" * 3)


class Takeover(Elastic):
    """Workers that outlive their driver. Its lease in the store ends 2 s after its death."""

    def drive(self, store=None, wait="8s", code=SLEEPER, workers=2):
        self.set_hosts("localhost:1", "b:1")
        return self.launch("--discovery", f"cat {self.folder}/hosts", "--poll", "0.1s", "--rsh", self.rsh, "--max", workers, "--store",
                           store or f"file://{self.folder}/store", "--orphan-wait", wait, code=code)

    def orphans(self, **options):
        """The workers of a driver that has been killed."""
        job = self.drive(**options)
        pids = self.up(job, 2)
        job.process.kill()
        job.process.wait()
        return {name: pid for (name, _, _), pid in pids.items()}

    def check_takeover(self, store=None):
        pids = self.orphans(store=store)
        job = self.drive(store=store)
        job.wait_for("weft: another driver runs this job, or has died: waiting for its lease to expire")
        job.wait_for("weft: takes over 2 workers")
        self.assertFalse(any(map(is_gone, pids.values())))
        os.kill(pids["worker1"], signal.SIGKILL)
        job.wait_for("weft: rank 1 on b was killed by signal 9")
        self.assertEqual(set(self.up(job)), {("worker1", "b", "0")})
        self.assertFalse(is_gone(pids["worker0"]))
        self.end(job)
        self.assertTrue(is_gone(pids["worker0"]))

    def test_a_driver_takes_over_by_a_file(self):
        self.check_takeover()

    def test_a_driver_takes_over_by_etcd(self):
        self.check_takeover(self.etcd())

    def test_a_worker_that_has_died_meanwhile_is_replaced(self):
        pids = self.orphans()
        os.kill(pids["worker0"], signal.SIGKILL)
        wait_until_gone([pids["worker0"]], PATIENCE)
        job = self.drive()
        job.wait_for("weft: rank 0 on localhost was killed by signal 9")
        self.assertEqual(set(self.up(job)), {("worker0", "here", "0")})
        self.assertFalse(is_gone(pids["worker1"]))
        self.end(job)

    def test_a_worker_that_has_succeeded_meanwhile_ends_the_job(self):
        pids = self.orphans()
        self.done.touch()
        wait_until_gone(pids.values(), PATIENCE)
        job = self.drive()
        self.assertEqual(job.end(), 0, job.output())
        self.assertNotIn("up", job.output())

    def test_an_interrupt_ends_workers_that_were_taken_over(self):
        pids = self.orphans()
        job = self.drive()
        job.wait_for("weft: takes over 2 workers")
        job.signal(signal.SIGTERM)
        self.assertEqual(job.end(), 143, job.output())
        self.assertTrue(all(map(is_gone, pids.values())))
        self.assertNotIn("has failed", job.output())

    def test_a_second_interrupt_kills_the_workers(self):
        job = self.drive(code="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SLEEPER)
        pids = self.up(job, 2)
        job.signal(signal.SIGINT)
        job.wait_for("weft: signal 2 .*: the workers are ended")
        job.signal(signal.SIGINT)
        self.assertEqual(job.end(), 130, job.output())
        wait_until_gone(pids.values(), PATIENCE)

    def test_workers_end_if_no_driver_comes(self):
        pids = self.orphans(wait="0.5s")
        wait_until_gone(pids.values(), PATIENCE)
        job = self.drive()
        job.wait_for("weft: no worker of the last driver is left: the job restarts")
        self.assertEqual(set(self.up(job, 2)), {("worker0", "here", "0"), ("worker1", "b", "0")})
        self.end(job)

    def test_a_keeper_that_is_lost_loses_its_worker(self):
        pids = self.orphans()
        keeper = int(pathlib.Path(f"/proc/{pids['worker1']}/stat").read_text().rsplit(")", 1)[1].split()[1])
        job = self.drive()
        job.wait_for("weft: takes over 2 workers")
        os.kill(keeper, signal.SIGKILL)
        job.wait_for("weft: rank 1 on b was lost: its keeper no longer answers")
        self.assertEqual(set(self.up(job)), {("worker1", "b", "0")})
        self.assertTrue(is_gone(pids["worker1"]))
        self.end(job)

    def test_one_driver_at_a_time(self):
        first = self.drive()
        pids = self.up(first, 2)
        second = self.drive()
        self.assertEqual(second.end(), 1)
        self.assertIn("weft: this driver ends, and leaves the workers: another driver runs this job", second.lines)
        self.assertFalse(any(map(is_gone, pids.values())))
        self.end(first)

    def test_a_driver_that_stood_still_leaves_the_workers_to_another(self):
        first = self.drive()
        pids = self.up(first, 2)
        first.signal(signal.SIGSTOP)
        second = self.drive()
        second.wait_for("weft: takes over 2 workers")
        first.signal(signal.SIGCONT)
        self.assertEqual(first.end(), 1)
        self.assertIn("weft: this driver ends, and leaves the workers: ", first.output())
        self.assertFalse(any(map(is_gone, pids.values())))
        self.end(second)

    def test_logs_are_kept(self):
        logs = self.folder / "logs"
        code = SLEEPER + "print('the end', flush=True)"
        for _ in range(2):
            job = self.launch("--max", "1", "--store", f"file://{self.folder}/store", "--orphan-wait", "8s", "--logs", logs, code=code)
            eventually("the worker runs", lambda: (logs / "worker0.out").exists() and "up" in (logs / "worker0.out").read_text())
            if not self.done.exists():
                job.process.kill()
                job.process.wait()
            self.done.touch()
        self.assertEqual(job.end(), 0, job.output())
        self.assertRegex((logs / "worker0.out").read_text(), r"^up \d+ worker0 here 0\nthe end\n$")


class Command(Elastic):
    def test_a_worker_elsewhere_has_its_folder_arguments_and_variables(self):
        code = "import os, sys; print(sys.argv[2:], os.getcwd(), *(os.environ.get(n) for n in sys.argv[2].split()))"
        names = "FAKE_HOST ODD RANK WEFT_NAME LOCAL_WORLD_SIZE WEFT_MIN_WORKERS WEFT_MAX_WORKERS WEFT_ELASTIC_WORLD"
        with Program(WEFT, "launch", "--start-timeout", "0", "--hosts", "b:1", "--min", "1", "--rsh", self.rsh, "--rendezvous",
                     free_address(), "--env", "ODD", sys.executable, "-c", code, self.done, names, "it's $HOME",
                     env={"ODD": 'a "b" $c', "RANK": "9"}) as job:
            self.assertEqual(job.end(), 0, job.output())
            self.assertEqual(job.lines, [f"""[0] [{names!r}, "it's $HOME"] {os.getcwd()} b a "b" $c None worker0 1 1 1 1"""])

    def test_workers_here_and_elsewhere_have_the_detection_time(self):
        code = "import os, sys; print(os.environ.get('FAKE_HOST'), os.environ.get('WEFT_DETECTION'))" + SLEEPER
        for options, variables, value in ((("--detection", "500ms"), {}, "0.5"), (("--detection", "2m"), {"WEFT_DETECTION": "9"}, "120"),
                                          ((), {"WEFT_DETECTION": "1.25"}, "1.25"), ((), {}, "None")):
            job = self.launch("--hosts", "localhost:1,b:1", "--rsh", self.rsh, "--rendezvous", free_address(), *options, code=code,
                              env=variables)
            self.up(job, 2)
            self.end(job)
            self.assertEqual({line for line in job.lines if "up" not in line and "weft:" not in line},
                             {f"[0] None {value}", f"[1] b {value}"})
            self.done.unlink()

    def test_errors_are_reported(self):
        for wrong, pattern in ((["--min", "2", "-n", "2", "true"], "start a job with a driver"),
                               (["--discovery", "x", "true"], "--max"), (["--hosts", "a:x", "true"], "number of slots"),
                               (["--hosts", "a", "--discovery", "x", "--max", "1", "true"], "--hosts and --discovery exclude"),
                               (["--hosts", "a:2", "--min", "3", "true"], "more than the 2 slots of the hosts"),
                               (["--max", "1", "nosuchprogram"], "no program 'nosuchprogram'"),
                               (["--max", "1", "--cooldown", "x", "true"], "is not a duration"), (["--max", "2"], "no program"),
                               (["--max", "1", "--rendezvous", "0.0.0.0:7000", "true"], "insecure"),
                               (["--max", "1", "--detection", "0s", "true"], "--detection '0s': expected a positive time, for example 5s"),
                               (["--max", "1", "--orphan-wait", "1m", "true"], "--orphan-wait needs --store")):
            status, lines = run(WEFT, "launch", *wrong)
            self.assertEqual(status, 2, (wrong, lines))
            self.assertRegex("\n".join(lines), pattern)

    def test_other_hosts_need_to_reach_the_store(self):
        job = self.launch("--hosts", "b:1", "--min", "1", "--rsh", self.rsh, "--host-failures", "1")
        self.assertEqual(job.end(), 1)
        self.assertIn("workers on 'b' cannot reach the job's store on this host: give its address with --rendezvous HOST:PORT", job.output())


class Agents(Elastic):
    """Workers that join the job."""

    def start(self, *options, lease=()):
        """A job of two agents that have met, and their processes by name."""
        job = Program(WEFT, "launch", "--max", "2", *options, WORKER, "elastic", self.done, *lease)
        self.addCleanup(job.__exit__)
        job.wait_for(r"^\[0\] worker0 of rank 0: worker1 joined")
        return job, self.agents()

    def agents(self):
        """The pids of the agents of this test, by name."""
        pids = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if not (folder / "cmdline").read_bytes().startswith(f"{WORKER}\0elastic\0{self.done}\0".encode()):
                    continue
                variables = (folder / "environ").read_bytes().decode().split("\0")
            except OSError:  # it has ended
                continue
            pids |= {name.removeprefix("WEFT_NAME="): int(folder.name) for name in variables if name.startswith("WEFT_NAME=")}
        return pids

    def check_that_a_loss_is_told(self, *options):
        job, pids = self.start(*options)
        os.kill(pids["worker1"], signal.SIGKILL)
        job.wait_for(r"^\[0\] worker0 of rank 0: worker1 lost")
        job.wait_for(r"^\[0\] worker0 of rank 0: worker1 joined")
        self.end(job)

    def test_a_loss_is_reported_at_once_by_the_drivers_store(self):
        self.check_that_a_loss_is_told()

    def test_a_loss_is_reported_at_once_by_a_file(self):
        self.check_that_a_loss_is_told("--store", f"file://{self.folder}/store")

    def test_a_loss_is_reported_at_once_by_etcd(self):
        self.check_that_a_loss_is_told("--store", self.etcd())

    def test_no_worker_outlives_its_driver_if_none_is_to(self):
        job, pids = self.start("--store", f"file://{self.folder}/store", "--orphan-wait", "0")
        job.process.kill()
        wait_until_gone(pids.values(), PATIENCE)

    def test_a_driver_that_takes_over_knows_the_joined_workers(self):
        options = "--store", f"file://{self.folder}/store", "--orphan-wait", "20s", "--logs", self.folder / "logs"
        job = Program(WEFT, "launch", "--max", "2", *options, WORKER, "elastic", self.done)
        self.addCleanup(job.__exit__)
        log = self.folder / "logs" / "worker0.out"
        eventually("the workers meet", lambda: log.exists() and "worker1 joined" in log.read_text())
        pids = self.agents()
        job.process.kill()
        job = Program(WEFT, "launch", "--max", "2", *options, WORKER, "elastic", self.done)
        self.addCleanup(job.__exit__)
        job.wait_for("weft: takes over 2 workers")
        self.assertEqual(self.agents(), pids)
        os.kill(pids["worker1"], signal.SIGKILL)
        eventually("another worker1 joins", lambda: log.read_text().count("worker1 joined") == 2)
        self.assertIn("worker0 of rank 0: worker1 lost", log.read_text())
        self.end(job)

    def test_a_worker_that_is_started_by_hand_joins(self):
        store = f"file://{self.folder}/store"
        job, _ = self.start("--store", store, "--orphan-wait", "0")
        with Program(WORKER, "elastic", self.done, env={"WEFT_ELASTIC_WORLD": "1", "WEFT_STORE": store, "WEFT_NAME": "guest",
                                                        "WEFT_ROLE_RANK": "9"}) as guest:
            job.wait_for(r"^\[0\] worker0 of rank 0: guest joined")
            guest.wait_for("guest of rank 9: worker0 joined")
            guest.process.kill()
        self.end(job)

    def test_the_driver_answers_health_checks_where_it_keeps_the_store(self):
        address = free_address()
        job, _ = self.start("--rendezvous", address)
        status, lines = run(WEFT, "health", f"tcp://{address}")
        self.assertEqual((status, lines[0], lines[1].split()[:2]), (0, "serving", ["agent", "driver"]), lines)
        self.end(job)
        self.assertEqual(run(WEFT, "health", "--timeout", "2s", f"tcp://{address}")[0], 3)

    def test_a_worker_that_leaves_on_a_signal_of_others_is_replaced(self):
        for options in ((), ("--store", f"file://{self.folder}/store", "--orphan-wait", "60s")):
            job, pids = self.start("--host-failures", "1", "--cooldown", "0", *options)
            os.kill(pids["worker1"], signal.SIGTERM)
            job.wait_for(r"^weft: rank 1 on localhost has left the job$")
            job.wait_for(r"^\[0\] worker0 of rank 0: worker1 joined")
            self.end(job)
            self.assertNotIn("blacklisted", job.output())
            self.done.unlink()

    def test_all_workers_fail(self):
        job, pids = self.start()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids.values():
                os.kill(pid, number)
        self.assertEqual(job.end(), 1, job.output())
        self.assertIn("weft: the job has failed: no worker is left; the last one: rank", job.output())

    def test_a_job_may_continue_without_its_state(self):
        job, pids = self.start("--restarts", "1")
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids.values():
                os.kill(pid, number)
        job.wait_for("weft: no worker is left: restart 1 of 1")
        job.wait_for(r"^\[0\] worker0 of rank 0: worker1 joined")
        self.end(job)

    LEASE = "3",  # seconds; longer than a pause of a loaded machine

    def exclude(self, name, why):
        """Excludes a worker, as the other workers do."""
        status, lines = run(WORKER, "exclude", self.folder / "store", name, why)
        self.assertEqual(status, 0, lines)

    def check_that_it_is_replaced(self, job, how):
        job.wait_for(rf"^weft: rank 1 on \w+ was {how}$")
        job.wait_for(r"^\[0\] worker0 of rank 0: worker1 joined")

    def check_that_the_job_ends_well(self, job, pids):
        self.assertTrue(is_gone(pids["worker1"]))
        self.assertFalse(is_gone(pids["worker0"]))
        self.end(job)
        self.assertEqual(len(re.findall(r"rank \d on \w+ (?!has succeeded)", job.output())), 1, "one failure")

    def check_that_a_stopped_worker_is_replaced(self, *options):
        job, pids = self.start(*options, lease=self.LEASE)
        os.kill(pids["worker1"], signal.SIGSTOP)
        self.check_that_it_is_replaced(job, "lost: its lease in the job's store has ended")
        self.check_that_the_job_ends_well(job, pids)

    def test_a_stopped_worker_is_ended_and_replaced(self):
        self.check_that_a_stopped_worker_is_replaced()

    def test_a_stopped_worker_with_a_keeper_is_ended_and_replaced(self):
        self.check_that_a_stopped_worker_is_replaced("--store", f"file://{self.folder}/store")

    def test_a_worker_whose_host_does_not_answer_is_replaced(self):
        job, pids = self.start("--hosts", "localhost:1,b:1", "--rsh", self.rsh, "--rendezvous", free_address(), "--grace", "0.1s",
                               lease=self.LEASE)
        attached = int(pathlib.Path(f"/proc/{pids['worker1']}/stat").read_text().rsplit(")", 1)[1].split()[1])
        for pid in (attached, pids["worker1"]):  # the host stands still
            os.kill(pid, signal.SIGSTOP)
        self.check_that_it_is_replaced(job, "lost: its lease in the job's store has ended")
        self.assertIn("weft: rank 1 did not end within 100 ms: killed", job.lines)
        for pid in (pids["worker1"], attached):  # the host continues
            os.kill(pid, signal.SIGCONT)
        wait_until_gone((pids["worker1"], attached), PATIENCE)
        self.check_that_the_job_ends_well(job, pids)

    def test_a_worker_that_the_others_exclude_is_ended_and_replaced(self):
        for options in (("--orphan-wait", "0"), ()):
            with self.subTest(options=options):
                job, pids = self.start("--store", f"file://{self.folder}/store", *options)
                self.exclude("worker1", "no step for 5 s")
                self.check_that_it_is_replaced(job, "excluded by the other workers: no step for 5 s")
                self.check_that_the_job_ends_well(job, pids)
                self.done.unlink()
                (self.folder / "store").unlink()

    def test_an_exclusion_of_an_earlier_incarnation_is_ignored(self):
        # The driver may learn of the second exclusion before it learns that the new worker1 has joined.
        job, _ = self.start("--store", f"file://{self.folder}/store", "--restarts", "1")
        self.exclude("worker1", "no step for 5 s")
        job.wait_for(r"^\[0\] worker0 of rank 0: worker1 joined")  # the key remains
        self.exclude("worker0", "no step for 6 s")
        job.wait_for("^weft: rank 0 on localhost was excluded by the other workers: no step for 6 s")
        job.wait_for(r"^\[1\] worker1 of rank 1: worker0 joined")
        self.end(job)
        self.assertEqual(job.output().count("was excluded by"), 2)

    def test_the_exclusion_of_the_last_worker_fails_the_job(self):
        job = Program(WEFT, "launch", "--max", "1", "--store", f"file://{self.folder}/store", WORKER, "elastic", self.done)
        self.addCleanup(job.__exit__)
        job.wait_for(r"^\[0\] worker0 of rank 0: worker0 joined")
        self.exclude("worker0", "why")
        self.assertEqual(job.end(), 1, job.output())
        self.assertIn("weft: the job has failed: no worker is left; the last one: rank 0 on localhost was excluded by the other workers: why",
                      job.lines)

    def test_a_driver_that_takes_over_ends_a_worker_that_was_lost_meanwhile(self):
        options = "--store", f"file://{self.folder}/store", "--orphan-wait", "40s", "--logs", self.folder / "logs"
        job = Program(WEFT, "launch", "--max", "2", *options, WORKER, "elastic", self.done, *self.LEASE)
        self.addCleanup(job.__exit__)
        log = self.folder / "logs" / "worker0.out"
        eventually("the workers meet", lambda: log.exists() and "worker1 joined" in log.read_text())
        pids = self.agents()
        job.process.kill()
        job.process.wait()
        os.kill(pids["worker1"], signal.SIGSTOP)
        eventually("the lease of worker1 ends", lambda: "worker1 lost" in log.read_text())
        job = Program(WEFT, "launch", "--max", "2", *options, WORKER, "elastic", self.done, *self.LEASE)
        self.addCleanup(job.__exit__)
        job.wait_for("weft: takes over 2 workers")
        job.wait_for("weft: rank 1 on localhost was lost: its lease in the job's store has ended")
        eventually("another worker1 joins", lambda: log.read_text().count("worker1 joined") == 2)
        self.assertTrue(is_gone(pids["worker1"]))
        self.end(job)

    def test_workers_of_several_hosts_meet(self):
        if problem := Hosts.missing():
            self.skipTest(problem)
        hosts = Hosts(2)
        self.addCleanup(hosts.close)
        rsh = self.script("enter", 'exec ip netns exec "$1" sh -c "$2"')
        self.set_hosts(*hosts.names)
        job = hosts.run(0, WEFT, "launch", "--min", "2", "--max", "2", "--discovery", f"cat {self.folder}/hosts", "--rsh", rsh,
                        "--rendezvous", f"{hosts.addresses[0]}:7000", "--insecure", WORKER, "elastic", self.done)
        self.addCleanup(job.__exit__)
        for _ in range(2):
            job.wait_for(r"of rank (\d): worker(?!\1)\d joined")
        self.end(job)


if __name__ == "__main__":
    WEFT, WORKER = map(os.path.abspath, sys.argv[1:])
    main(argv=sys.argv[:1], verbosity=2)
