#!/usr/bin/env python3
"""small_examples_test.py PROGRAM: the examples whose tests are short, each with a class of its name."""
import json
import pathlib
import re
import sys
import tempfile
import unittest

from processes import main, run, succeed


class Example(unittest.TestCase):
    def lines(self, *arguments):
        """What the program prints."""
        return succeed(PROGRAM, *arguments)


def found(pattern, lines):
    """The matches of whole lines."""
    return [match for line in lines if (match := re.fullmatch(pattern, line))]


class BatchedServer(Example):
    """Many requests share a forward, and every client gets its own answers."""

    CLIENTS, REQUESTS = 3, 100

    def served(self, *more):
        """Checks the clients' lines; requests, forwards, and rows of the largest forward."""
        lines = self.lines("--clients", self.CLIENTS, "--requests", self.REQUESTS, *more)
        for client in range(1, self.CLIENTS + 1):
            self.assertIn(f"client{client} answers={self.REQUESTS} right={self.REQUESTS}", lines)
        sums = found(r"requests=(\d+) forwards=(\d+) largest=(\d+)", lines)
        self.assertEqual(len(sums), 1, lines)
        return [int(number) for number in sums[0].groups()]

    def test_many_requests_share_a_forward(self):
        requests, forwards, largest = self.served("--window", 100_000)
        self.assertEqual(requests, self.CLIENTS * self.REQUESTS)
        self.assertLess(forwards, requests / 4)  # the 250 rows of one client fill 4 forwards
        self.assertGreater(largest, 4)
        self.assertLessEqual(largest, 64)

    def test_a_request_that_is_a_batch_has_a_separate_forward(self):
        requests, forwards, largest = self.served("--max-rows", 1)
        self.assertEqual(forwards, requests)
        self.assertEqual(largest, 4)


class DeviceMesh(Example):
    """A mesh of 2 x 2 ranks has the losses of one process."""

    def trained(self, *arguments):
        lines = self.lines(*arguments)
        losses = [float(m[1]) for m in found(r"step \d+: loss ([\d.]+)", lines)]
        return losses, {line for line in lines if line.startswith("rank")}

    def test_trains_as_one_process_does(self):
        losses, ranks = self.trained()
        self.assertEqual(ranks, {f"rank {2 * data + tensor}: data {data}, tensor {tensor}, has 16 of the 32 hidden features"
                                 for data in range(2) for tensor in range(2)})
        alone, _ = self.trained("-n", 1)
        self.assertEqual(len(losses), 5)
        for of_mesh, of_one in zip(losses, alone, strict=True):
            self.assertAlmostEqual(of_mesh, of_one, delta=2e-6)
        self.assertLess(losses[-1], losses[0] / 2)


class GradScaler(Example):
    """Both ranks skip the same steps, also those in which one of them has finite gradients."""

    def test_ranks_skip_the_same_steps(self):
        lines = self.lines()
        pattern = r"rank (\d): loss ([\d.]+), scale (\S+), (\d+) steps skipped, (\d+) of them for the other rank's gradients"
        ranks = sorted(match.groups() for match in found(pattern, lines))
        self.assertEqual([rank[0] for rank in ranks], ["0", "1"])
        self.assertEqual(ranks[0][2:4], ranks[1][2:4], "the scale and the steps skipped differ")
        self.assertLess(float(ranks[0][2]), 2 ** 24)  # the scale at the beginning
        self.assertGreater(sum(int(rank[4]) for rank in ranks), 0)
        self.assertLess(max(float(rank[1]) for rank in ranks), 0.02)


class HelloRpc(Example):
    """It prints what its source says."""

    def test_prints_its_lines(self):
        lines = self.lines()
        self.assertEqual(lines[:2], ["hello, weft", "4"])
        self.assertIn(lines[2:], [[], ["too late"]])  # five milliseconds are usually enough


class HybridEmbedding(Example):
    """The trainers learn with one sparse table, and their dense heads stay equal."""

    def test_learns(self):
        lines = self.lines("--trainers", 2, "--steps", 41)
        for trainer in (1, 2):
            losses = [float(m[1]) for m in found(rf"trainer{trainer} step=\d+ loss=([\d.]+)", lines)]
            self.assertEqual(len(losses), 5, lines)
            self.assertGreater(losses[0], 2.5)  # ln 20 = 3.0: the loss of an untrained model
            self.assertLess(losses[-1], 1.0, losses)
        ends = found(r"trainer\d unseen=([\d.]+) head=(\S+)", lines)
        self.assertEqual(len(ends), 2, lines)
        self.assertLess(max(float(end[1]) for end in ends), 1.0, lines)
        self.assertEqual(ends[0][2], ends[1][2], "the heads differ")


class Lbfgs(Example):
    """It finds the minimum of a function of parameters on two processes."""

    def test_finds_the_minimum(self):
        lines = self.lines()
        steps = found(r"step \d began at f = (\S+), and evaluated f (\d+) times", lines)
        self.assertEqual(len(steps), 6, lines)
        self.assertAlmostEqual(float(steps[0][1]), 36.2)  # f(-1.2, 2)
        self.assertLess(float(steps[-1][1]), 1e-12)
        self.assertLess(sum(int(step[2]) for step in steps), 100)  # gradient descent needs thousands
        self.assertIn("the minimum is at x = 1.000000, y = 1.000000", lines)


class PeerSet(Example):
    """Replicas die, all idempotent calls are answered, and the other call is not made again."""

    def test_calls_survive_their_replicas(self):
        lines = self.lines()
        counts = [dict(re.findall(r"(worker\d) answered (\d+)", line)) for line in lines if line.startswith("30 calls:")]
        self.assertEqual([sum(map(int, answers.values())) for answers in counts], [30, 30], lines)
        self.assertEqual(counts[0].keys(), {"worker1", "worker2", "worker3"})
        self.assertLess(sum(int(answers.get("worker2", 0)) for answers in counts), 12)
        self.assertTrue(any("worker2 was lost" in line for line in lines), lines)
        self.assertIn("bought at worker1", lines)
        self.assertIn("peer_lost, it may have been bought", lines)


class ReinforcementLearning(Example):
    """The agent learns to balance the pole for longer, the same way every time."""

    def rewards(self, *more):
        lines = self.lines("--observers", 3, "--max-steps", 120, *more)
        return [float(m[1]) for m in found(r"round=\d+ reward=([\d.]+)", lines)]

    def test_learns(self):
        rewards = self.rewards("--rounds", 40)
        self.assertEqual(len(rewards), 40)
        begin, end = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
        self.assertLess(begin, 40, rewards)  # the result of random pushes
        self.assertGreater(end, 2 * begin, rewards)

    def test_does_the_same_again(self):
        self.assertEqual(self.rewards("--rounds", 4), self.rewards("--rounds", 4))


class RnnModelParallel(Example):
    """The language model learns, and writes something."""

    def test_learns(self):
        lines = self.lines("--steps", 61)
        losses = [float(m[1]) for m in found(r"step=\d+ loss=([\d.]+)", lines)]
        self.assertEqual(len(losses), 7, lines)
        self.assertGreater(losses[0], 4)  # ln 76 = 4.33: the loss of an untrained model
        self.assertLess(losses[-1], 2.8)  # a model that knows only the frequencies of characters has a loss of 3.2
        self.assertTrue(any(line.startswith("it writes: GNU GENERAL PUBLIC L") for line in lines), lines)

    def test_a_text_that_is_not_there_is_an_error(self):
        status, lines = run(PROGRAM, "--text", "/nowhere")
        self.assertEqual(status, 1, lines)
        self.assertTrue(any("/nowhere" in line for line in lines), lines)


class ShardedEmbedding(Example):
    """Two trainers learn all ratings, and each owner has about half of the rows."""

    def test_learns_rows_of_two_owners(self):
        lines = self.lines()
        rows = [int(m[2]) for m in found(r"worker([01]) has (\d+) rows", lines)]
        self.assertEqual(len(rows), 2, lines)
        self.assertEqual(sum(rows), 300)
        self.assertGreater(min(rows), 100)
        errors = [float(m[1]) for m in found(r"the mean squared error is ([\d.]+)", lines)]
        self.assertEqual(len(errors), 1, lines)
        self.assertLess(errors[0], 0.05)  # 0.5 at the beginning; 0.25 if one trainer does not train


class Tracing(Example):
    """The file has one trace, in which each call is under the call that made it."""

    def test_writes_one_trace_of_nested_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "trace.json"
            lines = self.lines(file)
            self.assertIn(f"the order costs 12, and took 8 spans: {file}", lines)
            events = json.loads(file.read_text())["traceEvents"]
        agents = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        spans = {event["args"]["span"]: event for event in events if event["ph"] == "X"}
        self.assertEqual(len({span["args"]["trace"] for span in spans.values()}), 1)

        def chain(span):
            below = f"{agents[span['pid']]} {span['cat']} {span['name']}"
            parent = span["args"].get("parent")
            return ([] if parent is None else chain(spans[parent])) + [below]

        order = ["worker0 made shop.order", "worker1 served shop.order"]
        chains = [chain(span) for span in spans.values()]
        self.assertEqual(chains.count(order), 1)
        self.assertEqual(chains.count([*order, "worker1 made warehouse.price", "worker2 served warehouse.price"]), 3)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    main(defaultTest=pathlib.Path(PROGRAM).name.title().replace("_", ""))
