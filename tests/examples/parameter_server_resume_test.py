#!/usr/bin/env python3
"""parameter_server PROGRAM: a run whose every process is killed goes on from its checkpoint to the losses of one that was not."""
import os
import re
import sys

from processes import FolderTest, Program, eventually, kill_all, loss_table, main, run, succeed

TRAINERS = ("trainer1", "trainer2")


class Resume(FolderTest):
    def command(self, name):
        return (PROGRAM, "--mode-step", "synchronous", "--images", 4800, "--test-images", 1000, "--epochs", 2, "--batch-size", 32,
                "--out", self.folder / name, "--checkpoint", self.folder / name / "steps", "--checkpoint-every", 10)

    def result(self, name, lines):
        """The result of a run: each trainer's last losses, and the accuracy on the test images."""
        rows = loss_table(self.folder / name)
        losses = {trainer: [row["loss"] for row in rows if row["trainer"] == trainer][-5:] for trainer in TRAINERS}
        return losses, re.match(r"test_accuracy=(\S+)", lines[-1])[1]

    def whole_steps(self, name):
        steps = []
        for folder in (self.folder / name / "steps").glob("*"):
            try:
                files = [file for file in os.listdir(folder) if file.startswith("trainer") and not file.endswith(".part")]
            except FileNotFoundError:  # the program has removed this checkpoint, because newer ones are complete
                continue
            if len(files) == len(TRAINERS):
                steps.append(int(folder.name))
        return steps

    def kill_all(self, name, after):
        """A run of which every process is killed once it has saved this step, or a later one."""
        with Program(*self.command(name)) as job:
            def is_saved():
                self.assertIsNone(job.process.poll(), "the program exited before it was killed")
                return max(self.whole_steps(name), default=0) >= after

            eventually(f"a checkpoint after step {after}", is_saved)
            kill_all(job)

    def test_after_kill_9_of_every_process(self):
        want = self.result("whole", succeed(*self.command("whole")))
        self.assertLessEqual(len(list((self.folder / "whole" / "steps").iterdir())), 2, "old ones are removed")

        self.kill_all("killed", after=30)
        self.kill_all("killed", after=60)  # of 150: on a busy machine the test may read the file late
        newest = max(self.whole_steps("killed"))
        lines = succeed(*self.command("killed"))
        for trainer in TRAINERS:
            self.assertIn(f"{trainer}: resumes after {newest * 32} images", lines)
        self.assertEqual(self.result("killed", lines), want)

    def test_needs_one_step_for_all(self):
        status, lines = run(PROGRAM, "--checkpoint", self.folder)
        self.assertNotEqual(status, 0)
        self.assertRegex("\n".join(lines), "needs --mode autograd --mode-step synchronous")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
