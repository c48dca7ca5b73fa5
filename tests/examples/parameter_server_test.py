#!/usr/bin/env python3
"""parameter_server PROGRAM: a short run of each mode learns, and leaves its loss curve; it runs without its launcher, too."""
import sys
import xml.etree.ElementTree as xml

from processes import FolderTest, Program, free_address, loss_table, main, succeed

LAST_LINE = r"^test_accuracy=0\.\d{4} seconds=\d+\.\d images_per_second=\d+$"


class ParameterServer(FolderTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "curve"

    def check_run(self, lines, trainers=("trainer1", "trainer2")):
        self.assertRegex(lines[-1], LAST_LINE)
        self.assertGreater(float(lines[-1].split()[0].split("=")[1]), 0.3, lines)
        rows = loss_table(self.out)
        for trainer in trainers:
            losses = [float(row["loss"]) for row in rows if row["trainer"] == trainer]
            self.assertLess(losses[-1], 2.0, f"{trainer}: {losses}")  # ln 10 = 2.3: the loss of an untrained model
        picture = xml.parse(self.out / "loss.svg").getroot()
        self.assertEqual(len(picture.findall("{http://www.w3.org/2000/svg}polyline")), len(trainers))
        self.assertIn("prefers-color-scheme: dark", picture.find("{http://www.w3.org/2000/svg}style").text)

    def short_run(self, *more):
        self.check_run(succeed(PROGRAM, "--images", 2000, "--test-images", 1000, "--epochs", 1, "--out", self.out, *more))

    def test_autograd(self):
        self.short_run()

    def test_autograd_synchronous(self):
        self.short_run("--mode-step", "synchronous")

    def test_autograd_free(self):
        self.short_run("--mode-step", "hogwild")

    def test_pull_push(self):
        self.short_run("--mode", "pull-push")

    def test_each_process_started_by_hand(self):
        job = ["--world-size", 2, "--master", free_address(), "--images", 1000, "--test-images", 1000, "--epochs", 1]
        with Program(PROGRAM, "--rank", 1, *job) as trainer:
            lines = succeed(PROGRAM, "--rank", 0, "--out", self.out, *job)
            self.assertEqual(trainer.end(), 0, trainer.output())
        self.check_run(lines, trainers=["trainer1"])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
