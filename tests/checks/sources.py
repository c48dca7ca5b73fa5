"""The project's C++ files, tracked or new, as paths below the root. Ignored files (build/, .venv/) are left out."""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["rpc", "rref", "dist_autograd", "dist_optim", "parallel", "tools", "examples", "bench", "tests"]


def cxx_files(suffixes=(".h", ".cc", ".cu", ".cuh")):
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *FOLDERS],
            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
        files = [pathlib.Path(name) for name in listed if name]
    except (OSError, subprocess.CalledProcessError):  # a source archive without git
        files = [p.relative_to(ROOT) for folder in FOLDERS for p in (ROOT / folder).rglob("*")]
    return sorted(set(f for f in files if f.suffix in suffixes and (ROOT / f).is_file()))
