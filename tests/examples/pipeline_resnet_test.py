#!/usr/bin/env python3
"""pipeline_resnet PROGRAM: learns, and with the same losses for any number of workers and any schedule."""
import pathlib
import sys
import unittest

from processes import FolderTest, loss_table, main, succeed

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
SMALL = ("--width", 4, "--batch-size", 32, "--images", 640, "--test-images", 500, "--microbatches", 4)


@unittest.skipUnless(DATA.exists(), "not installed: dataset-fashion-mnist")
class PipelineResNet(FolderTest):
    def train(self, *options):
        """The losses, and the folder with the pictures."""
        out = self.folder / "_".join(map(str, options)).replace("/", "_")
        lines = succeed(PROGRAM, *SMALL, "--out", out, *options)
        self.assertRegex(lines[-1], r"^test_accuracy=0\.\d+$")
        return [float(row["loss"]) for row in loss_table(out)], out

    def test_cuts_schedules_and_recomputation_do_not_change_the_losses(self):
        whole, _ = self.train("--workers", 1)
        self.assertEqual(len(whole), 20)
        for options in (("--schedule", "zb-v"), ("--workers", 3, "--schedule", "gpipe", "--recompute")):
            losses, out = self.train(*options)
            for step, (loss, expected) in enumerate(zip(losses, whole, strict=True)):
                self.assertAlmostEqual(loss, expected, delta=0.02 * expected, msg=f"{options}, step {step}")
            picture = (out / "timeline.svg").read_text()
            self.assertIn("measured: the last step", picture)
            self.assertIn("predicted from", picture)

    def test_a_run_learns_and_resumes_from_its_checkpoint_with_the_same_losses(self):
        uninterrupted, _ = self.train("--epochs", 2)
        self.assertLess(sum(uninterrupted[-5:]), 0.9 * sum(uninterrupted[:5]))
        checkpoint = ("--checkpoint", self.folder / "stages.safetensors", "--checkpoint-every", 20)
        first, _ = self.train(*checkpoint)
        self.assertEqual(first, uninterrupted[:20])
        self.assertEqual(self.train(*checkpoint)[0], [])  # no step is left
        resumed, _ = self.train("--epochs", 2, *checkpoint)
        self.assertEqual(resumed, uninterrupted[20:])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
