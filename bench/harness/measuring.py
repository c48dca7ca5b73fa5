"""Shared by the peers in Python: the warm-up and the length of a measurement, and checks."""
import math
import os
import sys
import time

FEWEST_CALLS = 3


class Meter:
    """As those of bench/harness/meter.h."""

    def __init__(self, warm_up, duration):
        self.warm_up, self.duration = warm_up, duration
        self.created = self.started = time.perf_counter()
        self.warm, self.ignored, self.counted = False, 0, 0
        self.times = []

    def count(self, calls=1, latency=None):
        """Calls have ended; False: enough."""
        now = time.perf_counter()
        if not self.warm:
            self.ignored += calls
            self.warm = self.ignored >= FEWEST_CALLS and now - self.created >= self.warm_up
            self.started = now
            return True
        self.counted += calls
        self.elapsed = now - self.started
        if latency is not None:
            self.times.append(latency * 1e6)
        return self.elapsed < self.duration or self.counted < FEWEST_CALLS

    def latency(self):
        ordered = sorted(self.times)
        return {f"p{int(100 * q)}_us": ordered[math.ceil(q * len(ordered)) - 1] for q in (0.5, 0.99)}

    def rate(self, name="calls_per_s", unit=1):
        return {name: self.counted * unit / self.elapsed}


def check(right):
    if not right:
        sys.exit("the answer is wrong")


def threads():
    return len(os.listdir("/proc/self/task"))
