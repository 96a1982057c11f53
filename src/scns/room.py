"""Bytes: how many a device has left, how many a person allows, and how to say them."""

import re
from pathlib import Path

import torch

from scns.errors import InputError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse(text: str | int) -> int:
    """Bytes of a number of them, or of words such as 512M, 8G or 1.5GB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", str(text), re.IGNORECASE)
    value = 0 if found is None else int(float(found[1]) * _UNITS[found[2].upper()])
    if value < 1:
        raise InputError(f"memory={text} is no number of bytes; write 512M, 8G or 8000000000.")
    return value


def shown(count: float) -> str:
    """Bytes in the unit a person would choose: 51.2 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def brief(count: int) -> str:
    """About so many bytes, as `parse` reads them: 25M."""
    unit = next((unit for unit in "TGMK" if count >= 10 * _UNITS[unit]), "")
    return f"{count // _UNITS[unit]}{unit}"


def free(device: torch.device | str) -> int:
    """Bytes that can still be allocated on a device; on the host also within the limit of its control group."""
    device = torch.device(device)
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # kept by torch's allocator
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type != "cpu":
        return 1 << 62  # a device that cannot be asked
    return min(_available(), _group_limit())


def _available() -> int:
    try:
        told = Path("/proc/meminfo").read_text()
    except OSError:  # not Linux
        return 1 << 62
    found = re.search(r"MemAvailable:\s+(\d+) kB", told)
    return int(found[1]) * 1024 if found else 1 << 62


def _group_limit() -> int:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text()
        told = Path("/sys/fs/cgroup/memory.stat").read_text()
    except OSError:
        return 1 << 62
    if limit == "max":
        return 1 << 62
    cached = re.search(r"^inactive_file (\d+)", told, re.MULTILINE)  # given back when it is needed
    return max(0, int(limit) - int(used) + (int(cached[1]) if cached else 0))
