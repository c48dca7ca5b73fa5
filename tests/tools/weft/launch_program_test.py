#!/usr/bin/env python3
"""launch_program_test.py WEFT [WORKER]: weft launch with real processes: how they receive their rank and addresses, how they exit, and that no process is left."""
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from processes import PATIENCE, FolderTest, Program, is_gone, main, wait_until_gone  # noqa: E402

# A worker that has started another process. That process has left its group and session, and is an orphan.
WITH_DAEMON = """
import os, signal, sys, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("daemon", os.getpid(), flush=True)
        os.write(writer, b"!")
        time.sleep(3600)
    os._exit(0)
os.wait()
os.read(reader, 1)
"""


def launch(*arguments, code=None, env=None, files=()):
    """Runs weft launch to its end: its status, its output, its errors. code: Python that the workers run."""
    command = [WEFT, "launch", *arguments, *([sys.executable, "-c", code] if code else [])]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
                           pass_fds=files, env={**os.environ, **(env or {})})
    return ended.returncode, ended.stdout, ended.stderr


def launched(*arguments, code):
    return Program(WEFT, "launch", *arguments, sys.executable, "-c", code)


def pids(program, word, number):
    """Of lines "[0] WORD PID"."""
    return [int(program.wait_for(rf"{word} (\d+)")[1]) for _ in range(number)]


def below(program):
    """The process of the launcher that has the workers."""
    [pid] = program.children().values()
    return pid


def lines(text):
    return sorted(text.splitlines())


class Start(unittest.TestCase):
    def test_each_worker_gets_its_place(self):
        code = "import os; print(*(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR')))"
        status, output, errors = launch("-n", "3", code=code)
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(lines(output), [f"[{n}] {n} {n} 3 127.0.0.1" for n in range(3)])

    def test_workers_have_the_detection_time(self):
        code = "import os; print(os.environ.get('WEFT_DETECTION'))"
        for options, variables, value in ((("--detection", "0.5"), {}, "0.5"), (("--detection", "1m"), {"WEFT_DETECTION": "9"}, "60"),
                                          ((), {"WEFT_DETECTION": "1.25"}, "1.25"), ((), {}, "None")):
            status, output, errors = launch(*options, code=code, env=variables)
            self.assertEqual((status, output), (0, f"[0] {value}\n"), errors)

    def test_roles_have_separate_ranks(self):
        code = "import os; print(*(os.environ[n] for n in ('RANK', 'WEFT_ROLE', 'WEFT_ROLE_RANK', 'WEFT_ROLE_SIZE')))"
        status, output, errors = launch("--role", "server=1", "--role", "trainer=2", code=code)
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(lines(output), ["[server0] 0 server 0 1", "[trainer0] 1 trainer 0 2", "[trainer1] 2 trainer 1 2"])

    def test_arguments_are_the_programs_own(self):
        self.assertEqual(launch("--plain", "echo", "-n2", "--role", "--", "a b")[1], "-n2 --role -- a b\n")
        self.assertEqual(launch("--plain", "-n", "1", "--", "echo", "--", "x")[1], "-- x\n")

    def test_outputs_stay_apart_and_lines_whole(self):
        code = "import sys; sys.stdout.write('out' * 50000 + '\\n'); sys.stderr.write('half'); print('end', end='')"
        status, output, errors = launch("-n", "2", code=code)
        self.assertEqual(status, 0)
        self.assertEqual(lines(errors), ["[0] half", "[1] half"])
        for rank in (0, 1):
            own = [line[4:] for line in output.splitlines() if line.startswith(f"[{rank}] ")]
            self.assertEqual("".join(own), "out" * 50000 + "end")

    def test_output_goes_into_files(self):
        with tempfile.TemporaryDirectory() as folder:
            code = "import os, sys; print(os.environ['RANK']); sys.exit('wrong') if os.environ['RANK'] == '1' else None"
            status, output, errors = launch("-n", "2", "--logs", f"{folder}/new", code=code)
            self.assertEqual((status, output), (1, ""))
            self.assertRegex(errors, r"first failure: rank 1 ended with status 1; its last errors:\n +wrong\n")
            self.assertEqual(pathlib.Path(f"{folder}/new/worker1.err").read_text(), "wrong\n")
            self.assertEqual(pathlib.Path(f"{folder}/new/worker1.out").read_text(), "1\n")

    def test_input_is_empty_and_no_other_file_is_open(self):
        code = "import os, sys; print(repr(sys.stdin.read()), sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
        reader, writer = os.pipe()
        try:
            status, output, _ = launch("--plain", code=code, files=(writer,))
        finally:
            os.close(reader)
            os.close(writer)
        self.assertEqual((status, output), (0, "'' [0, 1, 2, 3]\n"))

    def test_pinned_workers_share_no_core(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("one core")
        status, output, errors = launch("-n", "2", "--pin", "--plain", code="import os; print(*os.sched_getaffinity(0))")
        self.assertEqual((status, errors), (0, ""))
        first, second = (set(line.split()) for line in output.splitlines())
        self.assertTrue(first and second and not first & second, output)
        status, _, errors = launch("-n", "100000", "--pin", "true")
        self.assertEqual(status, 2)
        self.assertIn("--pin", errors)

    def test_errors_are_reported(self):
        for wrong, pattern in ((["nosuchprogram"], "no program 'nosuchprogram'"), (["--mn", "2", "true"], "unknown option '--mn'"),
                               (["/etc/passwd"], "not an executable program"),
                               (["-n", "2"], "no program"), (["-n", "2", "--role", "a=1", "true"], "exclude each other"),
                               (["--role", "a=x", "true"], "no number of workers"), (["--nnodes", "2", "true"], "--rendezvous"),
                               (["--node-rank", "1", "true"], "expected a number from 0"), (["--grace", "x", "true"], "x"),
                               (["--detection", "0s", "true"], "--detection '0s': expected a positive time, for example 5s"),
                               (["--detection", "x", "true"], "'x' is not a duration"),
                               (["--join", "file:///nowhere/job7", "true"], "no job has this store: /nowhere/job7 does not exist"),
                               (["--join", "file://job7", "true"], "'file://job7' is not the URL of a file store")):
            status, output, errors = launch(*wrong)
            self.assertEqual((status, output), (2, ""), wrong)
            self.assertRegex(errors, pattern)


class Ends(FolderTest):
    def fifo(self, name):
        os.mkfifo(self.folder / name)
        return str(self.folder / name)

    def tell(self, pipe):
        """Unblocks the process that opens the pipe, now or later. Does not wait if no process does."""
        file = os.open(pipe, os.O_RDWR)
        self.addCleanup(os.close, file)

    def test_the_first_failure_is_reported_and_ends_the_others(self):
        code = """
import os, signal, sys, time
if os.environ["RANK"] == "2":
    sys.exit("Traceback: bad data")
signal.signal(signal.SIGTERM, lambda *_: (print("told to end", flush=True), os._exit(9)))
print("up", flush=True)
time.sleep(3600)
"""
        # Rank 2 may exit before the others have installed their handlers. The launcher terminates them nevertheless.
        status, output, errors = launch("-n", "3", code=code)
        self.assertEqual(status, 1)
        self.assertEqual(errors.splitlines()[1:], ["weft: first failure: rank 2 ended with status 1; its last errors:",
                                                   "    Traceback: bad data"])
        self.assertEqual(errors.splitlines()[0], "[2] Traceback: bad data")

    def test_the_status_is_passed_on(self):
        self.assertEqual(launch("-n", "2", code="import sys; sys.exit(37)")[0], 37)
        status, _, errors = launch(code="import os; os.kill(os.getpid(), 11)")
        self.assertEqual(status, 128 + 11)
        self.assertRegex(errors, r"rank 0 was killed by signal 11 \(Segmentation fault")

    def test_of_several_failures_the_first_is_reported(self):
        with launched("-n", "3", code="import os, time; print('up', os.getpid(), flush=True); time.sleep(3600)") as program:
            up = {}
            for _ in range(3):
                match = program.wait_for(r"\[(\d)\] up (\d+)")
                up[match[1]] = int(match[2])
            os.kill(below(program), signal.SIGSTOP)
            for rank in "120":  # each has ended before the next one starts, and the launcher has seen none of them
                os.kill(up[rank], signal.SIGKILL)
                wait_until_gone([up[rank]], PATIENCE)
            os.kill(below(program), signal.SIGCONT)
            self.assertEqual(program.end(), 137)
            self.assertIn("first failure: rank 1 was killed", program.output())
            self.assertEqual(program.output().count("failure"), 1)

    def test_the_worker_that_began_to_end_first_is_reported(self):
        code = """
import os, sys
if os.environ["RANK"] == "1":
    os.close(3)  # as the system does before it closes connections
    open(os.environ["LOST"], "w").close()
    open(os.environ["GO"]).close()
    sys.exit(9)
print("up", os.getpid(), flush=True)
open(os.environ["LOST"]).close()
sys.exit(1)
"""
        pipes = {name: self.fifo(name) for name in ("LOST", "GO")}
        with Program(WEFT, "launch", "-n", "2", sys.executable, "-c", code, env=pipes) as program:
            wait_until_gone(pids(program, "up", 1), PATIENCE)
            self.tell(pipes["GO"])
            self.assertEqual(program.end(), 9, program.output())
            self.assertIn("first failure: rank 1 ended with status 9", program.output())

    FAILS_THEN = """
import os, sys
rank = os.environ["RANK"]
if rank == "0":
    sys.exit(3)
print("up", flush=True)
open(os.environ["GO"]).close()
print("rank 0 was lost", file=sys.stderr)
sys.exit(int(rank) % 2 * 4)
"""

    def test_survivors_may_report_their_own_errors(self):
        go = self.fifo("go")
        with Program(WEFT, "launch", "-n", "2", "--failure-wait", "1h", sys.executable, "-c", self.FAILS_THEN,
                     env={"GO": go}) as program:
            for _ in range(2):
                program.wait_for(r"first failure: rank 0|\] up")
            self.tell(go)
            self.assertEqual(program.end(), 3)
            self.assertIn("[1] rank 0 was lost", program.lines)

    def test_a_signal_ends_the_wait_for_survivors(self):
        with Program(WEFT, "launch", "-n", "2", "--failure-wait", "1h", sys.executable, "-c", self.FAILS_THEN,
                     env={"GO": self.fifo("go")}) as program:
            program.wait_for("first failure: rank 0")
            program.signal(signal.SIGTERM)
            self.assertEqual(program.end(), 3)

    def test_keep_going(self):
        go = self.fifo("go")
        with Program(WEFT, "launch", "-n", "3", "--keep-going", "--failure-wait", "0s", sys.executable, "-c",
                     self.FAILS_THEN, env={"GO": go}) as program:
            for _ in range(3):
                program.wait_for(r"first failure: rank 0 ended with status 3|\] up")
            self.tell(go)
            self.assertEqual(program.end(), 3)
            self.assertIn("weft: another failure: rank 1 ended with status 4", program.lines)
            self.assertIn("[2] rank 0 was lost", program.lines)
            self.assertNotIn("rank 2 ended", program.output())

    def test_the_secret_file_is_passed_on(self):
        secret = self.folder / "job.secret"
        secret.write_text("a secret that nobody can guess\n")
        code = "import os, sys; print(os.environ['WEFT_SECRET'], 'secret that' in str(os.environ) + str(sys.argv))"
        status, output, errors = launch("--plain", "--secret", os.path.relpath(secret), code=code)
        self.assertEqual((status, output, errors), (0, f"{os.getcwd()}/{os.path.relpath(secret)} False\n", ""))

    def test_a_worker_that_does_not_end_is_killed(self):
        code = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", os.getpid(), flush=True)
if os.environ["RANK"] == "0":
    open(os.environ["GO"]).close()
    sys.exit(5)
time.sleep(3600)
"""
        go = self.fifo("go")
        with Program(WEFT, "launch", "-n", "2", "--grace", "100ms", sys.executable, "-c", code, env={"GO": go}) as program:
            up = pids(program, "up", 2)
            self.tell(go)
            self.assertEqual(program.end(), 5)
            self.assertIn("rank 1 did not end within 100 ms: killed", program.output())
            self.assertTrue(all(map(is_gone, up)))

    def test_a_stopped_worker_is_ended(self):
        code = """
import os, signal, sys
print("up", os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
        with launched("-n", "2", "--grace", "1h", code=code) as program:
            up = pids(program, "up", 2)
            program.signal(signal.SIGTERM)
            self.assertEqual(program.end(), 128 + signal.SIGTERM)
            self.assertTrue(all(map(is_gone, up)))

    def test_what_workers_leave_is_ended_with_them(self):
        with launched("-n", "2", "--grace", "100ms", code=WITH_DAEMON) as program:
            daemons = pids(program, "daemon", 2)
            self.assertEqual(program.end(), 0)
            self.assertTrue(all(map(is_gone, daemons)))

    def test_what_workers_leave_is_asked_to_end(self):
        told = WITH_DAEMON.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)",
                                   "signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), os._exit(0)))")
        for end, status in (("sys.exit(7)", 7), ("time.sleep(3600)", 128 + signal.SIGINT)):
            with launched("--grace", "30s", code=told + end) as program:
                program.wait_for("daemon")
                if status != 7:
                    program.signal(signal.SIGINT)
                self.assertEqual(program.end(), status)
                self.assertIn("[0] told", program.lines, program.output())
                self.assertNotIn("did not end", program.output())

    def test_a_failure_is_reported_while_processes_of_the_worker_still_print(self):
        script = "[ $RANK = 0 ] || exec sleep 3600; echo wrong >&2; yes & exit 3"
        status, _, errors = launch("-n", "2", "--grace", "30s", "sh", "-c", script)
        self.assertEqual(status, 3)
        self.assertIn("first failure: rank 0 ended with status 3; its last errors:\n    wrong\n", errors)

    def test_signals_end_all(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with launched("-n", "2", "--grace", "100ms", code=WITH_DAEMON + "time.sleep(3600)") as program:
                daemons = pids(program, "daemon", 2)
                program.signal(number)
                self.assertEqual(program.end(), 128 + number)
                self.assertTrue(all(map(is_gone, daemons)))

    def test_a_second_signal_kills_at_once(self):
        code = """
import os, signal, time
signal.signal(signal.SIGINT, lambda *_: print("no", flush=True))
print("up", os.getpid(), flush=True)
while True: time.sleep(3600)
"""
        with launched("-n", "2", "--grace", "1h", code=code) as program:
            up = pids(program, "up", 2)
            program.signal(signal.SIGINT)
            for _ in up:
                program.wait_for(r"\] no")
            program.signal(signal.SIGINT)
            self.assertEqual(program.end(), 128 + signal.SIGINT)
            self.assertTrue(all(map(is_gone, up)))

    def test_of_ignored_signals_only_sighup_stays_ignored(self):
        # A shell starts commands in the background of a script with SIGINT ignored.
        code = "import os, time; print('up', os.getpid(), flush=True); time.sleep(3600)"
        with Program("sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", WEFT, "launch", "-n", "2", sys.executable, "-c", code) as program:
            up = pids(program, "up", 2)
            program.signal(signal.SIGHUP)
            program.signal(signal.SIGINT)
            self.assertEqual(program.end(), 128 + signal.SIGINT)
            self.assertTrue(all(map(is_gone, up)))

    def test_control_c_on_a_terminal(self):
        code = "import os, time; print('up', os.getpid(), flush=True); time.sleep(3600)"
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(WEFT, [WEFT, "launch", "-n", "2", sys.executable, "-c", code])

        def read():
            self.assertTrue(select.select([terminal], [], [], PATIENCE)[0], f"nothing more is printed:\n{text}")
            return os.read(terminal, 4096).decode()

        text = ""
        while text.count(" up ") < 2 or not text.endswith("\n"):
            text += read()
        up = [int(word) for word in text.split() if word.isdigit()]
        os.write(terminal, b"\x03")
        try:
            while more := read():
                text += more
        except OSError:
            pass  # it has ended
        os.close(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 128 + signal.SIGINT)
        self.assertTrue(all(map(is_gone, up)), text)
        self.assertNotIn("again", text)

    def test_usr1_is_passed_on(self):
        code = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
print("up", os.getpid(), flush=True)
time.sleep(3600)
"""
        with launched("-n", "2", code=code) as program:
            pids(program, "up", 2)
            program.signal(signal.SIGUSR1)
            self.assertEqual(program.end(), 0)

    def test_unread_output(self):
        code = """
import os, time
while True: print("x" * 1000, flush=True)
"""
        process = subprocess.Popen([WEFT, "launch", "-n", "2", sys.executable, "-c", code], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdout.read(1000)
        process.stdout.close()
        self.assertEqual(process.wait(PATIENCE), 128 + signal.SIGPIPE)


class KeepRunning(FolderTest):
    # Prints its place, and ends as the test tells it by a line of the worker's FIFO.
    OBEYS = """
import os, sys
print("up", *(os.environ[n] for n in ("RANK", "WEFT_NAME", "WEFT_LISTEN")), os.getpid(), flush=True)
with open(f"{os.environ['FOLDER']}/{os.environ['RANK']}") as orders: order = orders.readline()
print("ends with", order, file=sys.stderr)
os.kill(os.getpid(), 9) if order == "kill" else os._exit(int(order))
"""

    def start(self, workers, *arguments, backoff="10ms"):
        for rank in range(workers):
            os.mkfifo(self.folder / str(rank))
        program = Program(WEFT, "launch", "--keep-running", "--backoff", backoff, "-n", workers, *arguments, sys.executable, "-c",
                          self.OBEYS, env={"FOLDER": str(self.folder)})
        self.addCleanup(program.__exit__)
        return program

    def order(self, rank, what):
        (self.folder / str(rank)).write_text(what)

    def up(self, program, workers):
        """The place and the process of each worker that starts, by its rank."""
        found = [program.wait_for(r"^\[\d\] up (\d) (\w+ \S+) (\d+)$") for _ in range(workers)]
        return {int(match[1]): (match[2], int(match[3])) for match in found}

    def test_a_worker_that_fails_starts_again_in_its_place(self):
        program = self.start(3)
        before = self.up(program, 3)
        self.assertEqual(len({place for place, _ in before.values()}), 3, before)
        for what, how in (("kill", r"was killed by signal 9 \(Killed\)"), ("7", "ended with status 7")):
            self.order(1, what)
            program.wait_for(f"^weft: rank 1 {how}, and starts again in .*; its last errors:$")
            [(rank, (place, pid))] = self.up(program, 1).items()
            self.assertEqual((rank, place), (1, before[1][0]))
            self.assertNotEqual(pid, before[1][1])
        self.assertFalse(any(is_gone(before[rank][1]) for rank in (0, 2)))
        for rank in range(3):
            self.order(rank, "0")
        self.assertEqual(program.end(), 0, program.output())
        self.assertEqual(program.output().count("] up"), 5, program.output())

    def test_a_worker_that_succeeds_does_not_start_again(self):
        program = self.start(2)
        before = self.up(program, 2)
        self.order(0, "0")
        wait_until_gone([before[0][1]], PATIENCE)
        self.order(1, "1")
        self.assertEqual(list(self.up(program, 1)), [1])
        self.order(1, "0")
        self.assertEqual(program.end(), 0, program.output())

    def test_the_limit_of_restarts_ends_all(self):
        program = self.start(2, "--max-restarts", "1", "--failure-wait", "0s")
        before = self.up(program, 2)
        self.order(1, "3")
        self.up(program, 1)
        self.order(1, "4")
        self.assertEqual(program.end(), 4, program.output())
        self.assertIn("weft: first failure: rank 1 ended with status 4 after 1 restart in a row, and --max-restarts permits no further one; "
                      "its last errors:", program.lines)
        self.assertTrue(is_gone(before[0][1]))

    def test_after_the_limit_no_worker_starts_again(self):
        program = self.start(2, "--max-restarts", "0", "--failure-wait", "1h")
        self.up(program, 2)
        self.order(1, "4")
        program.wait_for("first failure: rank 1 ended with status 4 after 0 restarts in a row")
        self.order(0, "5")
        self.assertEqual(program.end(), 4, program.output())
        self.assertEqual(program.output().count("] up"), 2, program.output())

    def test_a_worker_that_has_run_well_begins_a_new_row(self):
        program = self.start(1, "--max-restarts", "1", "--healthy-after", "0s")
        for _ in range(3):
            self.up(program, 1)
            self.order(0, "3")
        self.up(program, 1)
        self.order(0, "0")
        self.assertEqual(program.end(), 0, program.output())

    def test_a_signal_ends_all_also_while_one_waits_for_its_restart(self):
        program = self.start(2, backoff="1h")
        before = self.up(program, 2)
        self.order(1, "3")
        program.wait_for("starts again in 1 h")
        program.signal(signal.SIGTERM)
        self.assertEqual(program.end(), 128 + signal.SIGTERM, program.output())
        self.assertTrue(is_gone(before[0][1]))

    def test_the_file_of_the_program_may_be_replaced(self):
        service, other = self.folder / "service", self.folder / "other"
        service.write_text("#!/bin/sh\necho up; rm $0; exit 3\n")
        other.write_text("#!/bin/sh\necho other\n")
        for file in (service, other):
            file.chmod(0o755)
        with Program(WEFT, "launch", "--keep-running", "--backoff", "10ms", service) as program:
            program.wait_for("rank 0 did not start, and starts again in")
            other.rename(service)
            self.assertEqual(program.end(), 0, program.output())
            self.assertIn("[0] other", program.lines)

    def test_ports_follow_the_rendezvous(self):
        code = "import os; print(os.environ['WEFT_LISTEN'])"
        for variables, listen in (({}, ["tcp://127.0.0.1:7001", "tcp://127.0.0.1:7002"]), ({"WEFT_LISTEN": "unix:///a"}, ["unix:///a"] * 2)):
            status, output, errors = launch("--keep-running", "--plain", "-n", "2", "--rendezvous", "127.0.0.1:7001", code=code, env=variables)
            self.assertEqual((status, lines(output)), (0, listen), errors)

    def test_options_that_contradict_it_are_refused(self):
        for wrong, why in ((["--max", "2"], "excludes --min"), (["--nnodes", "2", "--rendezvous", "a:1"], "excludes --nnodes"),
                           (["--join", "tcp://a:1"], "excludes --join"), (["--keep-going"], "excludes --keep-going"),
                           (["--attached"], "excludes --attached"), (["--elastic"], "with --elastic needs --store file"),
                           (["--elastic", "--store", "tcp://a:1"], "with --elastic needs --store file"),
                           (["--backoff", "0s"], "--backoff '0s': expected a positive time"),
                           (["-n", "3", "--rendezvous", "127.0.0.1:65534"], "3 workers need ports up to 65536, expected at most 65535")):
            status, output, errors = launch("--keep-running", *wrong, "true")
            self.assertEqual((status, output), (2, ""), wrong)
            self.assertIn(why, errors)
        status, _, errors = launch("--max-restarts", "2", "true")
        self.assertEqual(status, 2)
        self.assertIn("--max-restarts requires --keep-running", errors)


class StalledReader(unittest.TestCase):
    """The process that holds the launcher's standard output does not read it, as with Ctrl-S or a pager."""

    PRINT = """
import os, signal, time
def say(text): os.write(2, b"%s %d\\n" % (text, os.getpid()))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, lambda *_: say(b"no"))
os.write(1, b"line\\n")
say(b"up")
"""

    def start(self, *arguments, code):
        """The launcher, and the end to read from of a pipe that is full already."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writer, True)
        program = Program(WEFT, "launch", *arguments, sys.executable, "-c", code, stdout=writer)
        os.close(writer)
        self.addCleanup(program.__exit__)
        return program, reader

    def read(self, reader):
        """All that the launcher has printed."""
        text = bytearray()
        while more := os.read(reader, 1 << 20):
            text += more
        return text.lstrip(b"\0").decode()

    def test_a_signal_ends_all_after_the_grace_time(self):
        program, _ = self.start("-n", "2", "--grace", "100ms", code=self.PRINT + "time.sleep(3600)")
        up = pids(program, "up", 2)
        program.signal(signal.SIGTERM)
        self.assertEqual(program.end(), 128 + signal.SIGTERM)
        self.assertTrue(all(map(is_gone, up)))

    def test_a_second_signal_kills_at_once(self):
        program, _ = self.start("-n", "2", "--grace", "1h", code=self.PRINT + "while True: time.sleep(3600)")
        up = pids(program, "up", 2)
        program.signal(signal.SIGINT)
        pids(program, "no", 2)
        program.signal(signal.SIGINT)
        self.assertEqual(program.end(), 128 + signal.SIGINT)
        self.assertTrue(all(map(is_gone, up)))

    def test_nothing_outlives_the_process_that_was_started(self):
        program, _ = self.start("-n", "2", "--grace", "100ms", code=self.PRINT + "time.sleep(3600)")
        rest = [*pids(program, "up", 2), below(program)]
        program.signal(signal.SIGKILL)
        wait_until_gone(rest, PATIENCE)

    def test_what_was_printed_is_waited_for(self):
        program, reader = self.start(code=self.PRINT + "os.write(1, b'more\\n' * 100000)")
        wait_until_gone(pids(program, "up", 1), PATIENCE)
        self.assertEqual(self.read(reader), "[0] line\n" + "[0] more\n" * 100000)
        self.assertEqual(program.end(), 0)

    def test_a_signal_ends_the_wait_for_the_reader(self):
        program, _ = self.start(code=self.PRINT)
        wait_until_gone(pids(program, "up", 1), PATIENCE)
        program.signal(signal.SIGTERM)
        self.assertEqual(program.end(), 128 + signal.SIGTERM)

    def test_workers_wait_for_the_reader(self):
        code = """
import os, signal
written = 0
signal.signal(signal.SIGUSR1, lambda *_: os.write(2, b"written %d\\n" % written))
os.write(2, b"up %d\\n" % os.getpid())
for _ in range(20000): written += os.write(1, b"x" * 999 + b"\\n")
"""
        program, reader = self.start("--plain", code=code)
        program.wait_for("up")
        before, written = -1, 0
        while written == 0 or written != before:  # until the pipe is full
            before = written
            program.signal(signal.SIGUSR1)
            written = int(program.wait_for(r"written (\d+)")[1])
        self.assertLess(written, 4 << 20)
        self.assertEqual(self.read(reader), ("x" * 999 + "\n") * 20000)
        self.assertEqual(program.end(), 0)


class LaunchersOwnDeath(unittest.TestCase):
    CODE = WITH_DAEMON + "print('up', os.getpid(), flush=True); time.sleep(3600)"

    def running(self):
        program = launched("-n", "2", "--grace", "100ms", code=self.CODE)
        self.addCleanup(program.__exit__)
        found = {"up": [], "daemon": []}
        for _ in range(4):
            match = program.wait_for(r"(up|daemon) (\d+)")
            found[match[1]].append(int(match[2]))
        return program, found["up"], found["daemon"]

    def test_of_the_process_that_was_started(self):
        program, up, daemons = self.running()
        rest = [below(program), *up, *daemons]
        program.signal(signal.SIGKILL)
        wait_until_gone(rest, PATIENCE)

    def test_of_the_one_below(self):
        program, up, daemons = self.running()
        os.kill(below(program), signal.SIGKILL)
        self.assertEqual(program.end(), 137)
        self.assertIn("the launcher was killed by signal 9", program.output())
        self.assertTrue(all(map(is_gone, [*up, *daemons])))

    def test_of_both_at_the_same_time(self):
        program, up, daemons = self.running()
        own = below(program)
        for pid in (own, program.process.pid):  # neither detects the end of the other
            os.kill(pid, signal.SIGSTOP)
        for pid in (own, program.process.pid):
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(up, PATIENCE)  # the workers; for processes that they started there is no guarantee
        for daemon in daemons:
            os.kill(daemon, signal.SIGKILL)


if __name__ == "__main__":
    WEFT = os.path.abspath(sys.argv[1])
    main(argv=sys.argv[:1], verbosity=2)
