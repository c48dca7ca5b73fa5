#!/usr/bin/env python3
"""rref_pipeline PROGRAM: the two stages learn, exactly as one process without weft does, and the last step is drawn."""
import re
import sys

from processes import FolderTest, main, succeed


def losses(lines):
    return {int(m[1]): float(m[2]) for line in lines if (m := re.fullmatch(r"step=(\d+) loss=([\d.]+)", line))}


def computations(svg):
    """The drawn computations, by their text form: (x, width) in pixels."""
    found = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*><title>(\w+):', svg)
    return {name: (float(x), float(width)) for x, width, name in found}


class RRefPipeline(FolderTest):
    def setUp(self):
        super().setUp()
        self.svg = self.folder / "timeline.svg"

    def test_draws_each_computation_of_the_last_step_once(self):
        succeed(PROGRAM, "--steps", 3, "--svg", self.svg)
        svg = self.svg.read_text()
        self.assertIn("measured: the last step", svg)
        drawn = computations(svg)
        self.assertEqual(svg.count("<title>"), len(drawn))
        self.assertEqual(set(drawn), {f"{stage}{op}{microbatch}" for stage in range(2) for op in "FB" for microbatch in range(8)})
        for stage in range(2):
            for microbatch in range(8):
                x, width = drawn[f"{stage}F{microbatch}"]
                self.assertLessEqual(x + width, drawn[f"{stage}B{microbatch}"][0] + 0.02, f"stage {stage}, micro-batch {microbatch}")

    def test_learns_as_one_process_does(self):
        lines = succeed(PROGRAM, "--svg", self.svg)
        self.assertRegex(lines[-2], r"^driver \[#{24}\] 100 %  loss 0\.\d+ +\d+ numbers/s$")
        piped = losses(lines)
        alone = losses(succeed(PROGRAM, "--alone"))

        self.assertGreater(len(alone), 5)
        self.assertEqual(piped.keys(), alone.keys())
        for step, loss in alone.items():
            self.assertAlmostEqual(piped[step], loss, delta=1e-5, msg=f"step {step}")
        self.assertGreater(piped[0], 4)  # ln 97 = 4.57: the loss of an untrained model
        self.assertLess(piped[max(piped)], piped[0] / 4)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
