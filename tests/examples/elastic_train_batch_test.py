#!/usr/bin/env python3
"""examples/slurm/elastic_train.sh under a real Slurm of two nodes: it is stopped before its time limit, and continues after a requeue."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "tools" / "weft"))
from processes import eventually, free_address, main  # noqa: E402

from slurm_cluster import SlurmTest  # noqa: E402

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
SCRIPT = TESTS.parent / "examples" / "slurm" / "elastic_train.sh"


@unittest.skipUnless(DATA.exists(), "not installed: dataset-fashion-mnist")
class Slurm(SlurmTest):
    def slurm(self, *command, **env):
        ended = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True,
                               env={**os.environ, **self.cluster.env, **env})
        return ended.stdout.strip()

    def test_a_stopped_job_continues_after_a_requeue(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        folder = pathlib.Path(folder.name)
        output = folder / "output"
        job = self.slurm("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", f"--output={output}", SCRIPT, "--images", 12000,
                         "--epochs", 6, WEFT=str(PROGRAM.parents[1] / "bin" / "weft"), PROGRAM=str(PROGRAM),
                         STATE=str(folder), RENDEZVOUS=free_address())
        self.addCleanup(subprocess.run, ["scancel", job], env={**os.environ, **self.cluster.env}, check=False)

        def await_text(*texts):
            eventually(f"{texts} in the job's output", lambda: output.exists() and all(t in output.read_text() for t in texts))

        try:
            await_text("step 50 ")
            self.slurm("scancel", "--signal=TERM", "--batch", job)  # as --signal does before the time limit
            await_text("leaves after step")
            eventually("the requeue", lambda: self.slurm("squeue", "--noheader", "--jobs", job, "--format=%t") == "PD")
            self.assertTrue(list(folder.glob("step-*.pt")))
            await_text("resumes after step")
            await_text("steps=300 ", "test_accuracy=")
            # If a job ends on its node, slurmd stops late.
            eventually("the end of the job", lambda: self.slurm("squeue", "--noheader", "--format=%t") == "")
        except BaseException:
            print(output.read_text() if output.exists() else "no output", self.slurm("scontrol", "show", "job"), sep="\n", file=sys.stderr)
            raise
        self.assertTrue((folder / "membership.svg").exists())


if __name__ == "__main__":
    PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
    main()
