#!/usr/bin/env python3
"""gpt PROGRAM: has the same losses for every mesh, resumes on another one, and refuses splits that do not divide.

With WEFT_GPT_MESHES=all every mesh of 1, 2, 4 and 8 ranks."""
import os
import pathlib
import re
import shutil
import sys

from processes import FolderTest, loss_table, main, run, succeed

TEXT = pathlib.Path(__file__).parents[2] / "LICENSE"
SMALL = ("--text", TEXT, "--width", 16, "--heads", 8, "--blocks", 8, "--context", 16, "--batch-size", 16, "--microbatches", 2, "--steps", 20,
         "--sample", 24, "--learning-rate", 0.005)
TOLERANCE = {"float64": 1e-8, "float32": 1e-4}  # relative
ALL = [(data, pipeline, ranks // data // pipeline) for ranks in (1, 2, 4, 8)
       for data in (1, 2, 4, 8) for pipeline in (1, 2, 4, 8) if ranks % (data * pipeline) == 0]
MESHES = {"float64": ALL, "float32": ALL} if os.environ.get("WEFT_GPT_MESHES") == "all" else \
    {"float64": [(1, 1, 1), (2, 1, 2), (1, 4, 1)], "float32": [(1, 1, 1), (2, 2, 2)]}


def sizes(data, pipeline, tensor):
    return "-n", data * pipeline * tensor, "--data", data, "--pipeline", pipeline, "--tensor", tensor


class Gpt(FolderTest):
    def train(self, mesh, *options):
        """The losses of the steps, and the lines."""
        out = self.folder / "out"
        lines = succeed(PROGRAM, *sizes(*mesh), *SMALL, "--out", out, *options)
        return [float(row["loss"]) for row in loss_table(out)], lines

    def results(self, lines):
        """The loss of the held-out text, and the sampled text."""
        loss = re.fullmatch(r"held-out text, nats for each byte: gpt=(\d\.\d+) 5-gram=\d\.\d+", lines[-1])
        self.assertTrue(loss, lines)
        (sampled,) = re.findall(r"^it writes: (.*)\Z", "\n".join(lines[:-1]), re.DOTALL | re.MULTILINE)
        return float(loss.group(1)), sampled

    def expect_close(self, actual, expected, tolerance, mesh):
        self.assertEqual(len(actual), len(expected))
        for step, (loss, other) in enumerate(zip(actual, expected)):
            self.assertAlmostEqual(loss, other, delta=tolerance * other, msg=f"{mesh}, step {step}")

    def expect_equal_losses(self, dtype, *options):
        whole = results = None
        for mesh in MESHES[dtype]:
            losses, lines = self.train(mesh, *options)
            whole, results = whole or losses, results or self.results(lines)
            self.assertEqual(len(losses), 20)
            self.expect_close(losses, whole, TOLERANCE[dtype], mesh)
            held_out, sampled = self.results(lines)
            self.assertAlmostEqual(held_out, results[0], delta=1e-3)  # it is printed with four digits
            if dtype == "float64":
                self.assertEqual(sampled, results[1], mesh)
            self.assertEqual((self.folder / "out" / "timeline.svg").exists(), mesh[1] > 1)
            shutil.rmtree(self.folder / "out")
        self.assertLess(whole[-1], 0.9 * whole[0])
        return whole

    def test_every_mesh_has_the_same_losses_in_float64_and_resumes_on_another_one(self):
        whole = self.expect_equal_losses("float64", "--float64")
        state = self.folder / "state"
        checkpoint = ("--float64", "--checkpoint", state, "--checkpoint-every", 10)
        self.train((2, 1, 2), *checkpoint)
        self.assertEqual(self.train((2, 1, 2), *checkpoint)[0], [])  # no step is left
        shutil.rmtree(state / "step-000000020")
        for mesh in MESHES["float64"] if MESHES["float64"] == ALL else [(1, 2, 4)]:
            copy = self.folder / "copy"
            shutil.copytree(state, copy)
            losses, lines = self.train(mesh, *checkpoint[:2], copy, *checkpoint[3:])
            self.assertTrue(any("resumes after step 10" in line for line in lines), lines)
            self.expect_close(losses, whole[10:], TOLERANCE["float64"], mesh)
            shutil.rmtree(copy)

    def test_every_mesh_has_the_same_losses_in_float32(self):
        self.expect_equal_losses("float32")

    def test_stages_of_tensor_ranks_run_other_schedules(self):
        whole, _ = self.train((1, 1, 1))
        for options in [("--schedule", "zb-v"),  # the last stage is on the first rank
                        ("--schedule", "interleaved", "--chunks", 2, "--cut", "block1,block4,head"),
                        ("--schedule", "zb-h1", "--mesh", "pipeline,data,tensor")]:
            losses, _ = self.train((1, 2, 2), *options)
            self.expect_close(losses, whole, TOLERANCE["float32"], options)

    def test_its_profile_is_one_that_the_planner_reads(self):
        profile = self.folder / "profile.txt"
        succeed(PROGRAM, *SMALL, "--profile", profile)
        for name in "profile.txt", "profile.txt.kept":
            text = (self.folder / name).read_text()
            self.assertEqual(len(re.findall(r"(?m)^\w+ -- .* -- forward_compute_time=", text)), 1 + 1 + 8 + 1, text)  # also the input

    def test_splits_that_do_not_divide_are_refused(self):
        for options, reason in [
                (("-n", 3, "--tensor", 3), "8 heads cannot be split over 3 tensor parallel ranks"),
                (("-n", 3, "--pipeline", 3), "8 blocks cannot be split over 3 stages"),
                (("-n", 3), r"16 rows of a batch cannot be split over 6 \(data 3 x micro-batches 2\)"),
                (("--pipeline", 2, "-n3"), r"3 ranks cannot be split over 2 \(pipeline 2 x tensor 1\)"),
                (("-n", 2, "--data", 2, "--tensor", 2), "data 2 x pipeline 1 x tensor 2 needs 4 ranks, and the job has 2"),
                (("-n", 2, "--pipeline", 2, "--schedule", "zb-v", "--cut", "block1"), "--cut has 1 layers: expected 3"),
                (("-n", 2, "--pipeline", 2, "--cut", "block99"), "the model has no layer 'block99'")]:
            status, lines = run(PROGRAM, *options, *SMALL)
            self.assertEqual(status, 1, lines)
            self.assertTrue(any(re.search(reason, line) for line in lines), (reason, lines))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
