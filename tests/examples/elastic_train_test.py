#!/usr/bin/env python3
"""examples/elastic_train: a storm of kills, stops, additions and removals changes neither the losses nor the images of an epoch."""
import collections
import pathlib
import re
import signal
import sys
import unittest

from processes import FolderTest, Program, free_address, loss_table, main, succeed

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
IMAGES, EPOCHS, BATCH, CHANGES = 12_000, 3, 240, 6
STEPS = EPOCHS * IMAGES // BATCH


def losses_of(folder):
    """By step."""
    return {int(row["step"]): float(row["loss"]) for row in loss_table(folder)}


@unittest.skipUnless(DATA.exists(), "not installed: dataset-fashion-mnist")
class ElasticTrain(FolderTest):
    def train(self, name, *options):
        """The losses by step, the test accuracy, and the lines."""
        out = self.folder / name
        lines = succeed(PROGRAM, "--images", IMAGES, "--epochs", EPOCHS, "--batch-size", BATCH, "--out", out, "--float64",
                        *options)
        losses = losses_of(out)
        accuracy = [float(match[1]) for line in lines if (match := re.search(r"test_accuracy=(\S+)", line))]
        return losses, accuracy[-1], lines

    def test_a_storm_changes_nothing(self):
        want, accuracy, _ = self.train("calm", "--changes", 0)
        got, stormy, lines = self.train("storm", "--changes", CHANGES, "--log", self.folder / "log")
        self.assertIn(f"storm {CHANGES} of {CHANGES}", "\n".join(lines))
        for step, loss in want.items():
            self.assertAlmostEqual(got[step], loss, delta=2e-6, msg=f"step {step}")  # the table has six digits
        self.assertEqual(stormy, accuracy)
        self.assertGreater(stormy, 0.75)
        self.assertIn("<rect", (self.folder / "storm" / "membership.svg").read_text())
        self.check_log(got)

    def test_stopped_workers_save_their_commit_and_resume(self):
        command = (pathlib.Path(PROGRAM).parents[1] / "bin" / "weft", "launch", "--plain", "--max", 2, PROGRAM, "--images", IMAGES,
                   "--epochs", EPOCHS, "--out", self.folder, "--checkpoint", self.folder)
        with Program(*command) as job:
            job.wait_for("^step 20 ")
            job.signal(signal.SIGTERM)
            self.assertEqual(job.end(), 128 + signal.SIGTERM, job.output())
            steps = {int(match[1]) for line in job.lines if (match := re.search(r"worker. leaves after step (\d+)", line))}
        [saved] = self.folder.glob("step-*.pt")
        self.assertIn(int(saved.stem.removeprefix("step-")), steps, job.output())
        lines = succeed(*command)
        self.assertEqual(sum(f"resumes after step {max(steps)}" in line for line in lines), 2, lines)
        self.assertIn(f"steps={STEPS} ", "\n".join(lines))
        self.assertEqual(sorted(losses_of(self.folder)), list(range(10, STEPS + 1, 10)))

    def test_workers_of_hosts_with_different_slots_train_together(self):
        rsh = self.folder / "rsh"  # to hosts a, b and c, all of which are this one
        rsh.write_text('#!/bin/sh\nexec sh -c "$2"\n')
        rsh.chmod(0o755)
        command = (pathlib.Path(PROGRAM).parents[1] / "bin" / "weft", "launch", "--plain", "--hosts", "a:1,b:2,c:3", "--min", 6, "--rsh", rsh,
                   "--rendezvous", free_address(), PROGRAM, "--images", 20 * BATCH, "--epochs", 1, "--batch-size", BATCH, "--out", self.folder,
                   "--float64")
        lines = succeed(*command, "--log", self.folder / "log")
        self.assertIn("steps=20 workers=6 ", "\n".join(lines))
        self.check_log(losses_of(self.folder), 20 * BATCH, 1)

    def check_log(self, losses, number_of_images=IMAGES, number_of_epochs=EPOCHS):
        """Of each step the last generation counts: each image is there once in an epoch, and the losses are those of the table."""
        steps = collections.defaultdict(dict)  # by step and generation: the lines by rank
        for path in (self.folder / "log").iterdir():
            for line in path.read_text().splitlines():
                step, epoch, generation, rank, ranks, loss, *images = line.split()
                steps[int(step)].setdefault(int(generation), {})[int(rank)] = (int(epoch), int(ranks), float(loss), images)
        self.assertEqual(sorted(steps), list(range(number_of_epochs * number_of_images // BATCH)))
        epochs, sums = collections.defaultdict(list), collections.Counter()
        for step, generations in steps.items():
            ranks = generations[max(generations)]
            for epoch, number, loss, images in ranks.values():
                self.assertEqual(len(ranks), number, f"step {step}")
                epochs[epoch] += map(int, images)
                sums[step // 10 * 10 + 10] += loss / number / 10
        for images in epochs.values():
            self.assertEqual(sorted(images), list(range(number_of_images)))
        for step, loss in losses.items():
            self.assertAlmostEqual(sums[step], loss, delta=2e-6, msg=f"step {step}")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
