#!/usr/bin/env python3
"""weights_program_test.py WEFT: `weft weights` lists and converts files of tensors."""
import os
import pathlib
import struct
import subprocess
import sys
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from processes import PATIENCE, FolderTest, main  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parents[2] / "parallel" / "weights" / "data"


def weights(*arguments, cwd=None):
    """Its exit status, its output, its errors."""
    ended = subprocess.run([WEFT, "weights", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, cwd=cwd)
    return ended.returncode, ended.stdout, ended.stderr


class WeightsTest(FolderTest):
    def printed(self, *arguments):
        status, output, errors = weights(*arguments, cwd=self.folder)
        self.assertEqual((status, errors), (0, ""), arguments)
        return output

    def test_lists(self):
        self.assertEqual(self.printed(DATA / "shards").splitlines(),
                         ["a    float32        [4, 2]                32 B", "b.c  uint8          [3]                   3 B", "2 tensors, 35 B"])
        listed = self.printed("--notes", DATA / "values.pt")
        self.assertIn("model.weight  float32        [3, 2]                24 B\n", listed)
        self.assertIn("\nepoch = 12\n", listed)

    def test_lists_and_converts_a_checkpoint(self):
        listed = self.printed(DATA / "dcp_three")
        self.assertIn("24 tensors", listed)
        self.assertEqual(self.printed("convert", DATA / "dcp_three", "whole.safetensors"), "")
        self.assertEqual(self.printed("whole.safetensors"), listed)

    def test_lists_each_name_on_one_line(self):
        header = rb'{"a\u001b\nb":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
        (pathlib.Path(self.folder) / "odd.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        self.assertEqual(self.printed("odd.safetensors").splitlines()[0].split()[0], r"a\u001b\nb")

    def test_converts_between_all_formats(self):
        listed = self.printed(DATA / "types.safetensors")
        source = DATA / "types.safetensors"
        for target in ("one.pt", "two.safetensors", "folder", "three.pt"):
            self.assertEqual(self.printed("convert", source, target), "")
            self.assertEqual(self.printed(target), listed)
            source = target
        with zipfile.ZipFile(pathlib.Path(self.folder) / "three.pt") as archive:
            self.assertIsNone(archive.testzip())
        again = self.printed("convert", "--dtype", "bfloat16", "--prefix", "b.=c.", "--max-shard", "20", DATA / "shards", "small")
        self.assertEqual(again, "")
        self.assertEqual(self.printed("small").splitlines(),
                         ["a    bfloat16       [4, 2]                16 B", "c.c  uint8          [3]                   3 B", "2 tensors, 19 B"])
        self.assertEqual(len(list((pathlib.Path(self.folder) / "small").glob("*.safetensors"))), 1)

    def test_checksums_can_be_ignored(self):
        changed = bytearray((DATA / "one.pt").read_bytes())
        changed[changed.index(b"PK\1\2") + 16] ^= 1  # the checksum of data.pkl in the directory
        (pathlib.Path(self.folder) / "unchecked.pt").write_bytes(changed)
        status, _, errors = weights("convert", "unchecked.pt", "x.safetensors", cwd=self.folder)
        self.assertEqual(status, 1)
        self.assertIn("another checksum", errors)
        self.printed("convert", "--no-checksums", "unchecked.pt", "x.safetensors")
        self.assertEqual(self.printed("x.safetensors"), self.printed(DATA / "one.pt"))

    def test_a_large_file_is_not_loaded(self):
        size = 3 << 29  # 1.5 GiB, without blocks on the disk
        header = b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
        with open(pathlib.Path(self.folder) / "large.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
        self.assertIn("1.5 GiB", self.printed("large.safetensors"))

    def test_refuses(self):
        (pathlib.Path(self.folder) / "bad").write_bytes(b"\xff" * 20)
        for arguments, expected, text in [(["bad"], 1, "a header of 18446744073709551615 bytes"), (["none"], 1, "cannot be opened"), ([], 2, "FILE"),
                                          (["convert", "bad"], 2, "TO"), (["convert", DATA / "shards", "file.txt"], 2, "expected a path that ends in"),
                                          (["convert", DATA / "types.pt", "x.safetensors"], 2, "complex128"),
                                          (["convert", "--prefix", "a", DATA / "shards", "x.pt"], 2, "expected FROM=TO")]:
            status, output, errors = weights(*arguments, cwd=self.folder)
            self.assertEqual((status, output), (expected, ""), errors)
            self.assertIn(text, errors)
        self.assertEqual(os.listdir(self.folder), ["bad"])

    def test_help(self):
        self.assertIn("convert", self.printed("--help"))


if __name__ == "__main__":
    WEFT = os.path.abspath(sys.argv.pop(1))
    main()
