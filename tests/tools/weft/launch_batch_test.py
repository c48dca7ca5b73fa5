#!/usr/bin/env python3
"""launch_batch_test.py WEFT WORKER: agents under real OpenMPI and real Slurm, without a launcher of weft and with it."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from processes import PATIENCE, Program, eventually, free_address, main, run, wait_until_gone  # noqa: E402

from hosts import Hosts  # noqa: E402
from slurm_cluster import SlurmTest  # noqa: E402

EVERYBODY = "worker0=0 worker1=1 worker2=2"
MET = [f"worker{n} met {EVERYBODY}" for n in range(3)]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]


class OpenMPI(unittest.TestCase):
    def setUp(self):
        if not shutil.which("mpirun"):
            self.skipTest("not installed: mpirun")

    def test_agents_meet_without_a_launcher(self):
        status, lines = run(*MPIRUN, "-n", 3, WORKER, "meet")
        self.assertEqual((status, sorted(lines)), (0, MET))

    def test_agents_of_two_hosts_meet(self):
        if problem := Hosts.missing():
            self.skipTest(problem)
        hosts = Hosts(2)
        self.addCleanup(hosts.close)
        with tempfile.TemporaryDirectory() as folder:
            # Replaces ssh, with a name for each host, because OpenMPI identifies hosts by their names.
            agent = pathlib.Path(folder) / "agent"
            cases = "".join(f"{address}) name={name};;\n" for address, name in zip(hosts.addresses, hosts.names))
            agent.write_text(f'#!/bin/sh\ncase $1 in\n{cases}esac\nshift\n'
                             'exec ip netns exec $name unshare -u sh -c "hostname $name; $*"\n')
            agent.chmod(0o755)
            command = [*MPIRUN, "--mca", "plm_rsh_agent", agent, "--host",
                       f"{hosts.addresses[0]}:1,{hosts.addresses[1]}:2", "-x", "WEFT_INSECURE=1", "-n", 3, WORKER, "meet"]
            with hosts.run(0, "unshare", "-u", "sh", "-c", f"hostname {hosts.names[0]}; exec " + " ".join(map(str, command))) as job:
                self.assertEqual(job.end(), 0, job.output())
                self.assertEqual(sorted(job.lines), MET)


class Slurm(SlurmTest):
    def srun(self, *arguments):
        return Program("srun", *arguments, env=self.cluster.env)

    def test_agents_of_two_nodes_meet_without_a_launcher(self):
        with self.srun("-N2", "-n3", WORKER, "meet") as job:
            self.assertEqual(job.end(), 0, job.output())
            self.assertEqual(sorted(line for line in job.lines if " met " in line), MET)

    def test_two_steps_at_the_same_time_are_two_jobs(self):
        srun = f"srun -n3 --overlap {WORKER} meet"
        script = f"{srun} & first=$!; {srun} & wait $first && wait $!"
        with Program("salloc", "-N2", "-n3", "bash", "-c", script, env=self.cluster.env) as job:
            self.assertEqual(job.end(), 0, job.output())
            self.assertEqual(sorted(line for line in job.lines if " met " in line), sorted(MET * 2))

    def test_a_launcher_on_each_node(self):
        with tempfile.TemporaryDirectory() as folder:
            share = (f"exec {WEFT} launch --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --rendezvous {free_address()} "
                     f"-n $((2 - SLURM_NODEID)) {WORKER} meet")
            script = pathlib.Path(folder) / "script"
            script.write_text(f"#!/bin/bash\nsrun -N2 --ntasks-per-node=1 bash -c '{share}'\n")
            output = pathlib.Path(folder) / "output"
            ended = subprocess.run(["sbatch", "--wait", "-N2", "--ntasks-per-node=1", "-o", output, script], timeout=PATIENCE,
                                   capture_output=True, text=True, env={**os.environ, **self.cluster.env})
            self.assertEqual(ended.returncode, 0, output.read_text())
            self.assertEqual(sorted(output.read_text().splitlines()), [f"[{n}] {line}" for n, line in enumerate(MET)])

    def test_a_driver_starts_workers_on_the_nodes_of_its_job(self):
        with tempfile.TemporaryDirectory() as folder:
            done = pathlib.Path(folder) / "done"
            command = (f"{WEFT} launch --discovery slurm --rsh srun --min 2 --max 2 --rendezvous {free_address()} "
                       f"{WORKER} elastic {done}")
            with Program("salloc", "-N2", "--ntasks-per-node=1", "bash", "-c", command, env=self.cluster.env) as job:
                for _ in range(2):
                    job.wait_for(r"of rank (\d): worker(?!\1)\d joined")
                done.touch()
                self.assertEqual(job.end(), 0, job.output())

    def test_a_job_that_is_requeued_commits_and_continues(self):
        code = '''
import os, pathlib, signal, sys, time
commit = pathlib.Path(sys.argv[1]) / "commit"
if commit.exists():
    print("continues from", commit.read_text(), flush=True)
    sys.exit()
def stop(*_):
    commit.write_text("step 7")
    sys.exit(3)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
time.sleep(3600)
'''
        with tempfile.TemporaryDirectory() as folder:
            script, output = pathlib.Path(folder) / "script", pathlib.Path(folder) / "output"
            program = pathlib.Path(folder) / "program.py"
            program.write_text(code)
            script.write_text(f"#!/bin/bash\nexec {WEFT} launch --max 1 --start-timeout 0 --grace 3s {sys.executable} {program} {folder}\n")
            env = {**os.environ, **self.cluster.env}
            with Program("sbatch", "--wait", "--requeue", "--open-mode=append", "-n1", "-o", output, script, env=self.cluster.env) as job:
                number = job.wait_for(r"Submitted batch job (\d+)")[1]
                eventually("the worker runs", lambda: output.exists() and "[0] up" in output.read_text())
                subprocess.run(["scontrol", "requeue", number], check=True, env=env)
                self.assertEqual(job.end(), 0, output.read_text())
                self.assertIn("signal 15 (Terminated): the workers are ended", output.read_text())
                self.assertIn("[0] continues from step 7", output.read_text())

    def test_a_cancelled_job_leaves_nothing(self):
        code = "import os, time; print('up', os.getpid(), flush=True); time.sleep(3600)"
        with self.srun("-N1", "-n1", "--job-name=endless", WEFT, "launch", "-n", 2, sys.executable, "-c", code) as job:
            pids = [int(job.wait_for(r"up (\d+)")[1]) for _ in range(2)]
            subprocess.run(["scancel", "--name=endless"], check=True, env={**os.environ, **self.cluster.env})
            self.assertNotEqual(job.end(), 0)
            wait_until_gone(pids, PATIENCE)

    def test_in_a_batch_script_without_srun_there_is_no_job(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "script"
            script.write_text(f"#!/bin/bash\nexec {WORKER} meet\n")
            output = pathlib.Path(folder) / "output"
            ended = subprocess.run(["sbatch", "--wait", "-n2", "-o", output, script], timeout=PATIENCE, capture_output=True,
                                   text=True, env={**os.environ, **self.cluster.env})
            self.assertEqual(ended.returncode, 1)
            self.assertIn("the environment has no WORLD_SIZE", output.read_text())


if __name__ == "__main__":
    WEFT, WORKER = map(os.path.abspath, sys.argv[1:])
    main(argv=sys.argv[:1], verbosity=2)
