"""Several hosts for a test: network namespaces on one bridge. Needs the right to make them (root) and iproute2."""
import itertools
import os
import shutil
import subprocess

from processes import Program

_numbers = itertools.count()  # a deleted namespace and its interfaces vanish with a delay


def _ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True)


class Hosts:
    @staticmethod
    def missing():
        """Why there can be none here; empty where they can be."""
        if not shutil.which("ip"):
            return "there is no `ip` here to make hosts with"
        name = f"weft{os.getpid()}probe{next(_numbers)}"
        try:
            _ip("netns", "add", name)
            try:
                _ip("-n", name, "link", "add", "near", "type", "veth", "peer", "name", "far")
                _ip("-n", name, "link", "add", "bridge", "type", "bridge")
            finally:
                _ip("netns", "delete", name)
        except subprocess.CalledProcessError as error:
            return f"no network namespaces here: {error.stderr.decode().strip()}"
        return ""

    def __init__(self, number):
        self._own = f"{os.getpid()}n{next(_numbers)}"
        self.names = [f"weft{self._own}h{host}" for host in range(number)]
        self.addresses = [f"10.98.7.{host + 1}" for host in range(number)]
        self._switch = f"weft{self._own}"  # created with the bridge, so that this host gets no other interface
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            _ip("netns", "add", name)
            _ip("-n", self._switch, "link", "add", f"h{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", self._switch, "link", "set", f"h{host}", "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{self.addresses[host]}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def run(self, host, *command, **options):
        return Program("ip", "netns", "exec", self.names[host], *command, **options)

    def cable(self, host, up):
        _ip("-n", self.names[host], "link", "set", "eth0", "up" if up else "down")

    def reset_connections(self, host):
        """Every TCP connection of that host to the others. False: the kernel or `ss` cannot."""
        if not shutil.which("ss"):
            return False
        command = ["ip", "netns", "exec", self.names[host], "ss", "-K", "-t", "state", "established", "dst", "10.98.7.0/24"]
        ended = subprocess.run(command, capture_output=True, text=True)
        return ended.returncode == 0 and "10.98.7." in ended.stdout

    def close(self):
        for name in [*self.names, self._switch]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
