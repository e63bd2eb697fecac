"""Names and numbers of transports. Written by go test ./transports/all -rewrite, from the table in all.go."""

from __future__ import annotations

from enum import IntEnum


class TransportType(IntEnum):
    """Transports; the numbers are those of Mooncake's TENT."""

    UNSPEC = 0
    RDMA = 1
    MNNVL = 2
    SHM = 3
    NVLINK = 4
    GDS = 5
    IOURING = 6
    TCP = 7
    AscendDirect = 8
    SUNRISE_LINK = 9
    TPU = 10
    UB = 11
    MPCOMM = 12
    HP_TCP = 13
    IO_URING = 6
    ASCEND_DIRECT = 8


# Names that hints take, in lower case.
HINTS: dict[str, int] = {
    "acl": 79,
    "ascend": 8,
    "ascend_direct": 8,
    "ascenddirect": 8,
    "buf-io": 64,
    "buf_io": 64,
    "bufio": 64,
    "delegate": 78,
    "gds": 5,
    "hp_tcp": 13,
    "io-uring": 6,
    "io_uring": 6,
    "iouring": 6,
    "mnnvl": 2,
    "mpcomm": 12,
    "nvlink": 4,
    "rdma": 1,
    "shm": 3,
    "sunrise_link": 9,
    "tcp": 7,
    "tpu": 10,
    "ub": 11,
    "unspec": 0,
}


def learn_transports(numbers: dict[str, int]) -> None:
    """Hints take the transports of an engine by name, too: those of plug-ins. A number is one name's in a process."""
    for name, number in numbers.items():
        if number and name not in HINTS:
            HINTS[name] = number
