"""The CRC32C that compiled code computes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from crc32c import crc32c

from rayka.storage.columns import crc
from rayka.storage.columns.decode import Bytes

# Around the 8 and 16 bytes of a step, around the three lanes of 512 bytes, and as long as batches are.
SIZES = (*range(40), *range(1528, 1548), *range(3064, 3082), 45_083, 100_001)


@pytest.mark.parametrize("compute", [crc.crc32c, crc.crc32c_by_table])
def test_the_crc_of_a_batch_is_that_of_the_crc32c_package_at_any_size_and_place(
    compute: Callable[[Bytes, int, int], int],
) -> None:
    content = random.Random(3).randbytes(SIZES[-1] + 16)
    data = np.frombuffer(content, np.uint8)
    for size in SIZES:
        for start in range(16):
            assert compute(data, start, start + size) == crc32c(content[start : start + size]), (start, size)


def test_the_table_computes_the_crc_when_numba_compiles_for_another_processor() -> None:
    code = "from rayka.storage.columns.crc import add_blocks, add_by_table; print(add_blocks is add_by_table)"
    environment = os.environ | {"NUMBA_CPU_NAME": "generic"}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120).stdout == "True\n"
