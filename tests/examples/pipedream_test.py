#!/usr/bin/env python3
"""pipedream PROGRAM: learns on a partition of the profile that it measures, with replicated stages and without."""
import pathlib
import sys
import unittest

from processes import FolderTest, loss_table, main, succeed

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
SMALL = ("--width", 4, "--hidden", 64, "--batch-size", 32, "--microbatches", 8, "--images", 1280, "--test-images", 500)


@unittest.skipUnless(DATA.exists(), "not installed: dataset-fashion-mnist")
class PipeDream(FolderTest):
    def train(self, *options):
        """The losses, and what the program printed."""
        lines = succeed(PROGRAM, *SMALL, "--out", self.folder, *options)
        self.assertRegex(lines[-1], r"^test_accuracy=0\.\d+$")
        self.assertIn("conv0", (self.folder / "graph.txt").read_text())
        picture = (self.folder / "timeline.svg").read_text()
        for words in ("measured: the last batches", "predicted from", "optimizer step"):
            self.assertIn(words, picture)
        return [float(row["loss"]) for row in loss_table(self.folder)], "\n".join(lines)

    def test_straight_stages(self):
        losses, text = self.train("--workers", 3, "--straight")
        self.assertLess(losses[-1], losses[0])
        for stage in range(3):
            self.assertRegex(text, rf"stage {stage}: .*, 1 of 3 workers")

    def test_replicated_stages(self):
        # If the links are fast enough, all workers are replicas of one stage.
        losses, text = self.train("--workers", 2, "--bandwidth", 1e15)
        self.assertLess(losses[-1], losses[0])
        self.assertRegex(text, r"stage 0: input0 to .*, 2 of 2 workers")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
