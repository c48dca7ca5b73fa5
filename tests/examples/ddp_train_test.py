#!/usr/bin/env python3
"""ddp_train PROGRAM: trains with one, two and four ranks, with each option, and resumes after kill -9 to the same losses."""
import csv
import pathlib
import re
import sys
import time
import unittest
import zipfile

from processes import PATIENCE, FolderTest, Program, kill_all, main, run

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
SMALLEST = ("--width", 4, "--epochs", 1)
SMALL = (*SMALLEST, "--batch-size", 32)


@unittest.skipUnless(DATA.exists(), "not installed: dataset-fashion-mnist")
class DdpTrain(FolderTest):
    def train(self, ranks, *options, name="run", small=SMALL):
        """The losses of each rank, and the test accuracy."""
        status, lines = run(PROGRAM, "-n", ranks, *small, "--out", self.folder / name, *options)
        self.assertEqual(status, 0, lines)
        return self.losses(name), float(re.match(r"test_accuracy=(\S+)", lines[-1])[1]), lines

    def losses(self, name):
        with open(self.folder / name / "loss.csv", newline="") as table:
            rows = list(csv.DictReader(table))
        return {rank: [row["loss"] for row in rows if row["trainer"] == rank] for rank in {row["trainer"] for row in rows}}

    def state(self, name):
        """The bits of each tensor of the checkpoint. The optimizer saves its own in an order that differs between runs."""
        with zipfile.ZipFile(self.folder / name / "state" / "ddp_train.pt") as archive:
            return sorted(archive.read(entry) for entry in archive.namelist() if re.search(r"/data/\d+$", entry))

    def test_any_number_of_ranks_learns(self):
        for ranks in (1, 2, 4):
            losses, accuracy, _ = self.train(ranks, "--images", 3200 * ranks)
            self.assertEqual(len(losses), ranks)
            for of_rank in losses.values():
                self.assertLess(float(of_rank[-1]), 0.7 * float(of_rank[0]))
            self.assertGreater(accuracy, 0.4)
            self.assertIn("<svg", (self.folder / "run" / "loss.svg").read_text())

    def test_compressed_gradients_learn(self):
        losses, accuracy, _ = self.train(2, "--images", 6400, "--compress")
        plain, _, _ = self.train(2, "--images", 6400, name="plain")
        self.assertNotEqual(losses, plain)
        self.assertGreater(accuracy, 0.4)

    def test_uneven_ranks_train_to_the_end(self):
        losses, accuracy, _ = self.train(2, "--images", 6400, "--uneven")
        self.assertGreater(accuracy, 0.4)
        lengths = {rank: len(of_rank) for rank, of_rank in losses.items()}
        self.assertEqual(len(set(lengths.values())), 2, lengths)

    def test_after_kill_9_of_every_rank(self):
        options = ("--images", 6400, "--checkpoint-every", 10)  # 100 steps: the last one is saved too
        want, accuracy, _ = self.train(2, *options, "--checkpoint", self.folder / "whole" / "state", name="whole")
        state = self.folder / "killed" / "state"
        with Program(PROGRAM, "-n", 2, *SMALL, "--out", self.folder / "killed", *options, "--checkpoint", state) as job:
            end = time.monotonic() + PATIENCE
            while not (state / "ddp_train.pt").exists():
                self.assertLess(time.monotonic(), end, job.output())
                self.assertIsNone(job.process.poll(), "it has ended before it was killed")
                time.sleep(0.01)
            kill_all(job)
        got, again, lines = self.train(2, *options, "--checkpoint", state, name="killed")
        self.assertTrue(any("resumes after step" in line for line in lines), lines)
        for rank in want:
            self.assertEqual(got[rank], want[rank][-len(got[rank]):])
            self.assertLess(len(got[rank]), len(want[rank]))
        self.assertEqual(again, accuracy)
        self.assertEqual(self.state("killed"), self.state("whole"))

    def test_shards_train_as_without(self):
        want, accuracy, _ = self.train(2, "--images", 1920)
        for shard in ("zero1", "zero2", "zero3"):
            got, again, _ = self.train(2, "--images", 1920, "--shard", shard, name=shard)
            for rank in got.values():  # a sharded run prints the mean over its ranks
                self.expect_close([sum(map(float, losses)) / 2 for losses in zip(*want.values(), strict=True)], rank)
            self.assertAlmostEqual(again, accuracy, delta=0.01)

    def expect_close(self, want, got):
        for a, b in zip(want, got, strict=True):
            self.assertAlmostEqual(float(a), float(b), delta=1e-3)

    def test_shards_resume_on_another_number_of_ranks(self):
        """After kill -9 of every rank. The ranks of a step have 64 images together."""
        # A low rate, so that rounding differences between numbers of ranks do not grow.
        options = ("--images", 1920, "--group-norm", "--checkpoint-every", 10, "--learning-rate", 0.01)
        for shard, before, after in (("zero1", 2, 4), ("zero3", 4, 2)):
            own = (*SMALLEST, *options, "--shard", shard)
            want, accuracy, _ = self.train(before, "--batch-size", 64 // before, name=shard + "whole", small=own)
            state = self.folder / shard / "state"
            with Program(PROGRAM, "-n", before, *own, "--batch-size", 64 // before, "--out", self.folder / shard,
                         "--checkpoint", state) as job:
                end = time.monotonic() + PATIENCE
                while not list(state.glob("step-?????????/manifest.safetensors")):  # not in an unfinished folder
                    self.assertLess(time.monotonic(), end, job.output())
                    self.assertIsNone(job.process.poll(), "it has ended before it was killed")
                    time.sleep(0.01)
                kill_all(job)
            got, again, lines = self.train(after, "--batch-size", 64 // after, "--checkpoint", state, name=shard, small=own)
            self.assertTrue(any("resumes after step" in line for line in lines), lines)
            whole = next(iter(want.values()))
            for rank in got.values():
                self.assertLess(len(rank), len(whole))
                self.expect_close(whole[-len(rank):], rank)
            self.assertAlmostEqual(again, accuracy, delta=0.01)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
