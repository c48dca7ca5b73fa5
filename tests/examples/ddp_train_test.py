#!/usr/bin/env python3
"""ddp_train PROGRAM: trains with one, two and four ranks, with each option, and resumes after kill -9 to the same losses."""
import collections
import gzip
import math
import pathlib
import re
import struct
import sys
import tempfile
import unittest
import zipfile

from processes import FolderTest, Program, eventually, kill_all, loss_table, main, succeed

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")


def copy_first(count, name, folder):
    """Copies the first entries of a file of the data set, which has the IDX format."""
    with gzip.open(DATA / name) as source, gzip.open(folder / name, "wb", compresslevel=1) as copy:
        magic, _ = source.read(4), source.read(4)  # the second word is the number of entries
        sizes = source.read(4 * (magic[3] - 1))
        copy.write(magic + struct.pack(">I", count) + sizes)
        copy.write(source.read(count * math.prod(struct.unpack(f">{magic[3] - 1}I", sizes))))


@unittest.skipUnless(DATA.exists(), "not installed: dataset-fashion-mnist")
class DdpTrain(FolderTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        # A part of the data set: all 10,000 test images would take longer than a training of 100 steps.
        cls.data = pathlib.Path(folder.name)
        for part, count in (("train", 6400), ("t10k", 1000)):
            copy_first(count, f"{part}-images-idx3-ubyte.gz", cls.data)
            copy_first(count, f"{part}-labels-idx1-ubyte.gz", cls.data)
        # Two ranks without further options, in 100 steps. The last step is saved too.
        cls.out = cls.data / "plain"
        cls.plain = cls.train(cls.out, 2, "--checkpoint-every", 10, "--checkpoint", cls.out)

    @classmethod
    def command(cls, out, ranks, *options, batch=32):
        return PROGRAM, "-n", ranks, "--data", cls.data, "--width", 4, "--epochs", 1, "--batch-size", batch, "--out", out, *options

    @classmethod
    def train(cls, *arguments, **options):
        """The losses of each rank, the test accuracy, and the lines."""
        lines = succeed(*cls.command(*arguments, **options))
        losses = collections.defaultdict(list)
        for row in loss_table(arguments[0]):
            losses[row["trainer"]].append(row["loss"])
        return losses, float(re.match(r"test_accuracy=(\S+)", lines[-1])[1]), lines

    def kill_after(self, checkpoint, *arguments, **options):
        """Trains until the folder has such a file, and kills every rank."""
        with Program(*self.command(*arguments, **options)) as job:
            def is_saved():
                self.assertIsNone(job.process.poll(), "it has ended before it was killed")
                return any(self.folder.glob(checkpoint))

            eventually("a checkpoint", is_saved)
            kill_all(job)

    def state(self, out):
        """The bits of each tensor of the checkpoint. The optimizer saves its own in an order that differs between runs."""
        with zipfile.ZipFile(out / "ddp_train.pt") as archive:
            return sorted(archive.read(entry) for entry in archive.namelist() if re.search(r"/data/\d+$", entry))

    def test_any_number_of_ranks_learns(self):
        one = self.train(self.folder / "1", 1, "--images", 3200)
        four = self.train(self.folder / "4", 4, batch=16)
        for ranks, out, (losses, accuracy, _) in ((1, self.folder / "1", one), (2, self.out, self.plain), (4, self.folder / "4", four)):
            self.assertEqual(len(losses), ranks)
            for of_rank in losses.values():
                self.assertLess(float(of_rank[-1]), 0.7 * float(of_rank[0]))
            self.assertGreater(accuracy, 0.4)
            self.assertIn("<svg", (out / "loss.svg").read_text())

    def test_compressed_gradients_learn(self):
        losses, accuracy, _ = self.train(self.folder, 2, "--compress")
        self.assertNotEqual(losses, self.plain[0])
        self.assertGreater(accuracy, 0.4)

    def test_uneven_ranks_train_to_the_end(self):
        losses, accuracy, _ = self.train(self.folder, 2, "--images", 3200, "--uneven", batch=16)
        self.assertGreater(accuracy, 0.4)
        lengths = {rank: len(of_rank) for rank, of_rank in losses.items()}
        self.assertEqual(len(set(lengths.values())), 2, lengths)

    def test_after_kill_9_of_every_rank(self):
        own = (self.folder, 2, "--checkpoint-every", 10, "--checkpoint", self.folder)
        self.kill_after("ddp_train.pt", *own)
        got, again, lines = self.train(*own)
        self.assertTrue(any("resumes after step" in line for line in lines), lines)
        want, accuracy, _ = self.plain
        for rank in want:
            self.assertEqual(got[rank], want[rank][-len(got[rank]):])
            self.assertLess(len(got[rank]), len(want[rank]))
        self.assertEqual(again, accuracy)
        self.assertEqual(self.state(self.folder), self.state(self.out))

    def test_shards_train_as_without(self):
        want, accuracy, _ = self.train(self.folder, 2, "--images", 1280)
        for shard in ("zero1", "zero2", "zero3"):
            got, again, _ = self.train(self.folder / shard, 2, "--images", 1280, "--shard", shard)
            for rank in got.values():  # a sharded run prints the mean over its ranks
                self.expect_close([sum(map(float, losses)) / 2 for losses in zip(*want.values(), strict=True)], rank)
            self.assertAlmostEqual(again, accuracy, delta=0.01)

    def expect_close(self, want, got):
        for a, b in zip(want, got, strict=True):
            self.assertAlmostEqual(float(a), float(b), delta=1e-3)

    def test_shards_resume_on_another_number_of_ranks(self):
        """After kill -9 of every rank. The ranks of a step have 64 images together."""
        # A low rate, so that rounding differences between numbers of ranks do not grow.
        options = ("--images", 1920, "--group-norm", "--checkpoint-every", 10, "--learning-rate", 0.01, "--shard")
        for shard, before, after in (("zero1", 2, 4), ("zero3", 4, 2)):
            want, accuracy, _ = self.train(self.folder / (shard + "whole"), before, *options, shard, batch=64 // before)
            whole = next(iter(want.values()))
            out = self.folder / shard
            own = (*options, shard, "--checkpoint", out / "state")
            finished = f"{shard}/state/step-?????????/manifest.safetensors"
            self.kill_after(finished, out, before, *own, batch=64 // before)
            got, again, lines = self.train(out, after, *own, batch=64 // after)
            self.assertTrue(any("resumes after step" in line for line in lines), lines)
            for rank in got.values():
                self.assertLess(len(rank), len(whole))
                self.expect_close(whole[-len(rank):], rank)
            self.assertAlmostEqual(again, accuracy, delta=0.01)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
