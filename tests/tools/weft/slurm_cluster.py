"""A real Slurm of two nodes on this host: munged, slurmctld and a slurmd for each node. Needs root, slurm-wlm, munge."""
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

from processes import PATIENCE

# Slurm restarts a requeued job after cred_expire, and at the next sched_interval.
CONFIG = """
ClusterName=weft
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=6
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerParameters=sched_interval=1
SelectType=select/cons_tres
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n.spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldPort={ports[0]}
SlurmdParameters=config_overrides
MpiDefault=none
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=YES
"""


def _free_ports(number):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class SlurmCluster:
    @staticmethod
    def missing():
        """Why there can be none here; empty where there can."""
        programs = [name for name in ("munged", "slurmctld", "slurmd", "srun", "setpriv") if not shutil.which(name)]
        return f"not installed: {', '.join(programs)}" if programs else "" if os.getuid() == 0 else "Slurm's daemons need root"

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="weft-slurm-")
        folder = pathlib.Path(self._folder.name)
        folder.chmod(0o755)
        (folder / "state").mkdir()
        for node in ("n1", "n2"):
            (folder / f"{node}.spool").mkdir()
        (folder / "key").touch(mode=0o400)
        (folder / "key").write_bytes(os.urandom(1024))
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(host=socket.gethostname().split(".")[0], folder=folder, ports=_free_ports(3)))
        self.env = {"SLURM_CONF": str(config)}
        self._daemons = []
        self._start("munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket",
                    f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed")
        self._await("munge's socket", lambda: (folder / "munge.socket").exists())
        self._start("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self._start("slurmd", "-D", "-N", node)
        self._await("idle nodes", lambda: subprocess.run(["sinfo", "-h", "-o", "%t"], env={**os.environ, **self.env},
                                                         capture_output=True, text=True).stdout == "idle\n")

    def _start(self, *command):
        log = open(f"{self._folder.name}/{command[0]}{len(self._daemons)}.output", "wb")
        # The daemons end with this process, however it ends.
        self._daemons.append(subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.DEVNULL,
                                              stdout=log, stderr=log, env={**os.environ, **self.env}))
        log.close()

    def _await(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end or any(daemon.poll() is not None for daemon in self._daemons):
                logs = [path.read_text(errors="replace")[-2000:] for path in pathlib.Path(self._folder.name).glob("*.output")]
                self.close()
                raise AssertionError(f"Slurm did not come up ({what}):\n" + "\n".join(logs))
            time.sleep(0.05)

    def close(self):
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._folder.cleanup()


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if problem := SlurmCluster.missing():
            raise unittest.SkipTest(problem)
        cls.cluster = SlurmCluster()
        cls.addClassCleanup(cls.cluster.close)
