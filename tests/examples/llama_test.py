#!/usr/bin/env python3
"""llama PROGRAM: computes what transformers computes with the same folder, over every mesh, and writes a folder that it reads.

The results of transformers for the folder llama/tiny are recorded in llama/expected.json. If $WEFT_TORCH_PYTHON, or the Python of .venv-pytorch,
has transformers, other models are compared with it now (llama/reference.py)."""
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import unittest

from processes import FolderTest, loss_table, main, run, succeed

ROOT = pathlib.Path(__file__).parents[2]
HERE = pathlib.Path(__file__).parent / "llama"
TINY = HERE / "tiny"
TEXT = ROOT / "LICENSE"
# A value in bfloat16 has 8 significant bits: one rounding changes it by at most 2**-8 of it. The loss of a token is a difference of logits and
# about as large as the largest logit, so an error of one rounding in each logit changes it by this factor. Each logit has errors of several
# roundings, but these are independent of each other, and a loss is a mean over 128 tokens.
BFLOAT16_TOLERANCE = 2**-8
MESHES = [(1, 1, 1), (4, 1, 1), (1, 1, 2), (2, 1, 2), (1, 1, 4)]  # data, pipeline, tensor
PIPELINES = [(1, 2, 1), (2, 2, 1), (1, 2, 2)]


def read_safetensors(path):
    """float32 and int64 tensors, as lists of their elements, and their shapes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, form in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in form["data_offsets"])
            code, size = {"F32": ("f", 4), "I64": ("q", 8)}[form["dtype"]]
            tensors[name] = list(struct.unpack(f"<{(end - begin) // size}{code}", data[begin:end])), form["shape"]
    return tensors


def sizes(data, pipeline, tensor):
    return "-n", data * pipeline * tensor, "--data", data, "--pipeline", pipeline, "--tensor", tensor


def reference(*arguments):
    """The output of reference.py; skips the test if this machine cannot run it."""
    python = os.environ.get("WEFT_TORCH_PYTHON") or ROOT / ".venv-pytorch/bin/python"
    if not os.access(python, os.X_OK):
        raise unittest.SkipTest(f"there is no Python at {python} (WEFT_TORCH_PYTHON)")
    done = subprocess.run([python, HERE / "reference.py", *map(str, arguments)], text=True, stdout=subprocess.PIPE,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    if done.returncode == 77:
        raise unittest.SkipTest(f"{python} cannot run reference.py: {done.stdout.strip()} (WEFT_TORCH_PYTHON)")
    if done.returncode != 0:
        raise AssertionError(f"reference.py {arguments}: exit status {done.returncode}")
    return done.stdout


class Llama(FolderTest):
    def generated(self, model, prompt, *options):
        lines = succeed(PROGRAM, "generate", model, "--prompt", prompt, "--tokens", 40, "--ids", *options)
        return [int(token) for token in lines[-1].split()]

    def expect_close(self, actual, expected, tolerance, what):
        self.assertEqual(len(actual), len(expected), what)
        for i, (one, other) in enumerate(zip(actual, expected)):
            self.assertAlmostEqual(one, other, delta=tolerance * max(1, abs(other)), msg=f"{what}: {i}")

    def expect_tokens(self, model, expected):
        file = self.folder / "text"
        file.write_text(expected["odd"], newline="")
        self.assertEqual([int(token) for token in succeed(PROGRAM, "tokens", model, file)[0].split()], expected["odd_tokens"])
        self.assertEqual(hashlib.sha256(succeed(PROGRAM, "tokens", model, TEXT)[0].encode()).hexdigest(), expected["text_hash"])

    def expect_outputs(self, model, expected, *options):
        file = self.folder / "logits.safetensors"
        self.assertEqual(self.generated(model, expected["prompt"], "--logits", file, *options), expected["generated"])
        tensors = read_safetensors(file)
        self.assertEqual(tensors["tokens"][0], expected["tokens"])
        logits = [each for row in expected["logits"] for each in row]
        self.expect_close(tensors["logits"][0][-len(logits):], logits, 1e-5, "logits")

    def train(self, model, expected, mesh, *options):
        """Expects the losses of transformers; returns the folder of the new model."""
        out = self.folder / f"out-{model.name}-{'x'.join(map(str, mesh))}"
        succeed(PROGRAM, "train", model, TEXT, "--out", out, *sizes(*mesh), *expected["training"], *options)
        self.expect_close([float(row["loss"]) for row in loss_table(out)], expected["losses"], 1e-4, mesh)
        return out

    def expect_bfloat16(self, model, expected, mesh):
        """Trains with --bf16, and expects the losses of transformers in bfloat16. They are not those in float32."""
        out = self.folder / f"bf16-{model.name}-{'x'.join(map(str, mesh))}"
        succeed(PROGRAM, "train", model, TEXT, "--out", out, *sizes(*mesh), *expected["training"], "--bf16")
        losses = [float(row["loss"]) for row in loss_table(out)]
        self.expect_close(losses, expected["bfloat16_losses"], BFLOAT16_TOLERANCE, mesh)
        self.assertGreater(max(abs(one - other) for one, other in zip(losses, expected["losses"])), 1e-3, mesh)
        read_safetensors(out / "model.safetensors")  # which are float32

    def recorded(self):
        return json.loads((HERE / "expected.json").read_text())

    def test_it_computes_what_transformers_has_computed(self):
        expected = self.recorded()
        self.expect_tokens(TINY, expected)
        self.expect_outputs(TINY, expected)
        for ranks in 2, 4:  # of 2 heads of keys and values
            self.expect_outputs(TINY, expected, "-n", ranks, "--tensor", ranks)

    def test_every_mesh_has_the_losses_of_transformers_and_writes_its_model(self):
        expected = self.recorded()
        for mesh in MESHES:
            out = self.train(TINY, expected, mesh)
            self.assertEqual(self.generated(out, expected["prompt"]), expected["generated_after"], mesh)
            self.assertEqual(sorted(file.name for file in out.iterdir()),
                             sorted([*(file.name for file in TINY.iterdir()), "loss.csv", "loss.svg"]))
        self.train(TINY, expected, (2, 1, 1), "--microbatches", 2)

    def test_it_trains_in_bfloat16(self):
        expected = self.recorded()
        for mesh in (1, 1, 1), (2, 1, 2):
            self.expect_bfloat16(TINY, expected, mesh)
        model = self.untied()
        for key, options in ("losses", ()), ("bfloat16_losses", ("--bf16",)):
            out = self.folder / key
            succeed(PROGRAM, "train", model, TEXT, "--out", out, *expected["training"], *options)
            expected[key] = [float(row["loss"]) for row in loss_table(out)]
        self.expect_bfloat16(model, expected, (1, 2, 2))

    def untied(self):
        """A folder with the tiny model, and with a copy of its embedding as the output layer."""
        model = self.folder / "untied"
        shutil.copytree(TINY, model)
        (model / "config.json").write_text(json.dumps({**json.loads((TINY / "config.json").read_text()), "tie_word_embeddings": False}))
        data = (TINY / "model.safetensors").read_bytes()
        header_end = 8 + struct.unpack("<Q", data[:8])[0]
        header, tensors = json.loads(data[8:header_end]), data[header_end:]
        form = header["model.embed_tokens.weight"]
        begin, end = form["data_offsets"]
        header["lm_head.weight"] = {**form, "data_offsets": [len(tensors), len(tensors) + end - begin]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + tensors + tensors[begin:end])
        return model

    def test_pipelines_have_the_losses_of_one_process(self):
        model = self.untied()
        expected = self.recorded()
        self.expect_outputs(model, expected)
        whole = self.folder / "whole"
        succeed(PROGRAM, "train", model, TEXT, "--out", whole, *expected["training"])
        expected["losses"] = [float(row["loss"]) for row in loss_table(whole)]
        for mesh in PIPELINES:
            out = self.train(model, expected, mesh)
            self.assertEqual(self.generated(out, expected["prompt"]), self.generated(whole, expected["prompt"]), mesh)

    def test_it_prints_the_text(self):
        lines = succeed(PROGRAM, "generate", TINY, "--prompt", "Préface <|end_of_text|>\n漢字", "--tokens", 1)
        self.assertTrue("\n".join(lines).startswith("Préface \n漢字"), lines)
        sampled = [self.generated(TINY, "The", "--temperature", 1, "--seed", seed) for seed in (1, 1, 2)]
        self.assertEqual(sampled[0], sampled[1])
        self.assertNotEqual(sampled[0], sampled[2])

    def test_other_models_are_compared_with_transformers(self):
        for variant in "untied", "gpt2":
            with self.subTest(variant):
                model, file, tuned = (self.folder / f"{variant}-{name}" for name in ("model", "expected", "tuned"))
                reference("make", variant, model, file, tuned)
                expected = json.loads(file.read_text())
                self.expect_tokens(model, expected)
                self.expect_outputs(model, expected)
                self.expect_outputs(model, expected, "-n", 2, "--tensor", 2)
                meshes = [*MESHES, *PIPELINES]
                lines = reference("compare", tuned, *(self.train(model, expected, mesh) for mesh in meshes)).splitlines()
                self.assertEqual(len(lines), len(meshes))
                for mesh, line in zip(meshes, lines):
                    difference, *tokens = line.split()
                    self.assertLess(float(difference), 1e-3, mesh)
                    self.assertEqual([int(token) for token in tokens], expected["generated_after"], mesh)
                for mesh in (1, 1, 1), (2, 1, 2), (1, 2, 2):
                    self.expect_bfloat16(model, expected, mesh)

    def test_what_it_cannot_do_is_refused(self):
        model = self.folder / "model"
        shutil.copytree(TINY, model)

        def change(file, key, value):
            content = json.loads((TINY / file).read_text())
            content[key] = value
            (model / file).write_text(json.dumps(content))

        def expect_refused(reason, *options):
            command = options or ("generate", model, "--prompt", "a")
            status, lines = run(PROGRAM, *command)
            self.assertEqual(status, 1, lines)
            self.assertIn(reason, "\n".join(lines))

        for key, value, reason in [("model_type", "gpt2", "config.json: model_type is 'gpt2': expected 'llama'"),
                                   ("rope_parameters", {"rope_type": "yarn"}, "rope_type is 'yarn': expected default, linear or llama3"),
                                   ("attention_bias", True, "attention_bias is true"),
                                   ("num_hidden_layers", 3, "missing in the file: model.layers.2."),
                                   ("intermediate_size", 64, "float32 [32, 48] in the file, float32 [32, 64] in the module")]:
            change("config.json", key, value)
            expect_refused(reason)
        shutil.copy(TINY / "config.json", model)
        for key, value, reason in [("normalizer", {"type": "NFC"}, 'tokenizer.json: normalizer is {"type":"NFC"}: expected none'),
                                   ("pre_tokenizer", {"type": "Metaspace"}, 'pre_tokenizer is {"type":"Metaspace"}: expected ByteLevel'),
                                   ("model", {"type": "Unigram"}, 'the model\'s type is "Unigram": expected BPE')]:
            change("tokenizer.json", key, value)
            expect_refused(reason)
        for options, reason in [(sizes(1, 2, 1), "tie_word_embeddings is true: expected separate embeddings in a pipeline"),
                                (sizes(1, 1, 3), "4 heads and 48 hidden features cannot be split over 3 tensor parallel ranks"),
                                (sizes(3, 1, 1), "8 rows of a batch cannot be split over data 3 x micro-batches 1"),
                                (("--batch-size", 1000), "expected at least 256001, a batch of 1000 parts of 256 tokens")]:
            expect_refused(reason, "train", TINY, TEXT, "--out", self.folder / "out", *options)
        expect_refused("expected another folder than that of the model", "train", model, TEXT, "--out", model)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main()
