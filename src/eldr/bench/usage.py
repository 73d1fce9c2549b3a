"""What a process and its children have used, from /proc."""

import os
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants that live."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in _read(task).split()]
    return found


def cpu_s(pid: int) -> float:
    """User and system time of the tree in seconds, its finished threads included, in steps of 10 ms."""
    return sum(_ticks(each) for each in process_tree(pid)) * TICK_S


def peak_bytes(pid: int) -> int:
    """The sum of the tree's largest resident sizes."""
    sizes = (_read(Path(f"/proc/{each}/status")) for each in process_tree(pid))
    lines = (line for text in sizes for line in text.splitlines() if line.startswith("VmHWM:"))
    return sum(int(line.split()[1]) * 1024 for line in lines)


def _ticks(pid: int) -> int:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if fields else 0


def _read(path: Path) -> str:
    """The file's text, empty once its process is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""
