#!/usr/bin/env python3
"""Compares the steps that `weft plan` predicts for gpt with measured ones, over all factorizations of 2, 4 and 8 processes.

  compare_plans.py GPT WEFT [--ranks 2,4,8] [--rounds 3] [--steps 15] [GPT OPTION...]

GPT and WEFT are the two programs. Each round measures each factorization once, with the schedule and the cuts that the
planner gives. The table has the medians of the rounds. docs/parallelism.md has such a table."""
import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import tempfile


def output_of(*command):
    return subprocess.run([str(word) for word in command], check=True, text=True, stdout=subprocess.PIPE).stdout


def measured_step(gpt, plan, ranks, options, out):
    arguments = shlex.split(plan["command"].split(" ./gpt ", 1)[1])
    lines = output_of(gpt, "-n", ranks, *arguments, *options, "--sample", 1, "--out", out)
    return float(re.search(r"median step: ([\d.]+) s", lines).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpt", type=pathlib.Path)
    parser.add_argument("weft", type=pathlib.Path)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--microbatch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--latency", default="70us", help="of a message between two processes that sleep while they wait")
    options, rest = parser.parse_known_args()
    model = [*rest, "--heads", options.heads]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "profile.txt"
        output_of(options.gpt, *model, "--batch-size", options.batch_size, "--microbatches", options.batch_size // options.microbatch,
                  "--profile", profile)
        plans = []
        for ranks in map(int, options.ranks.split(",")):
            found = output_of(options.weft, "plan", profile, "--kept", f"{profile}.kept", "--hosts", ranks, "--cores", min(cores, ranks),
                              "--latency", options.latency, "--microbatch", options.microbatch, "--global-batch", options.batch_size, "--tensor-layers", "block*",
                              "--heads", options.heads, "--program", "./gpt", "--plans", 100, "--json")
            plans += [(ranks, plan) for plan in json.loads(found)["plans"]]
        measured = [[] for _ in plans]
        for _ in range(options.rounds):
            for (ranks, plan), steps in zip(plans, measured):
                steps.append(measured_step(options.gpt, plan, ranks, [*model, "--steps", options.steps], pathlib.Path(folder) / "out"))
    print(f"{cores} cores\n\nranks  data  pipeline  tensor   schedule  predicted s  measured s  measured / predicted")
    for (ranks, plan), steps in zip(plans, measured):
        actual, predicted = statistics.median(steps), plan["step_seconds"]
        schedule = plan["schedule"] if plan["pipeline"] > 1 else "-"
        print(f"{ranks:5}  {plan['data']:4}  {plan['pipeline']:8}  {plan['tensor']:6}  {schedule:>9}  {predicted:11.3f}  {actual:10.3f}"
              f"  {actual / predicted:20.2f}")


if __name__ == "__main__":
    main()
