"""Does TensorBoard read what we write?"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from capax.runs import tensorboard
from capax.runs.tensorboard import Events, crc32c


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """(step, value, wall time) of every curve, as TensorBoard sees the folder."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return {tag: [(e.step, e.value, e.wall_time) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.parametrize(("data", "crc"), [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),  # the check value of the CRC catalogue
    (bytes(32), 0x8A9136AA),  # RFC 3720, appendix B.4
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
])  # fmt: skip
def test_checksum(data, crc):
    assert crc32c(data) == crc


def test_tensorboard_reads_the_curves(tmp_path):
    events = Events(tmp_path / "below" / "run")
    events.scalars(0, {"return": -1.5, "κ": 0.0}, 1000.25)
    events.scalars(3_000_000_000, {"return": 2.5}, 1001.5)  # a step of more than 32 bits
    events.close()
    assert read(tmp_path / "below" / "run") == {
        "return": [(0, -1.5, 1000.25), (3_000_000_000, 2.5, 1001.5)],
        "κ": [(0, 0.0, 1000.25)],
    }


def test_values_are_float32_and_need_not_be_finite(tmp_path):
    events = Events(tmp_path)
    for step, value in enumerate((0.1, 1e300, -1e300, np.float32(7.0), np.int64(-3), True, math.nan)):
        events.scalars(step, {"x": value}, 0.0)
    events.close()
    values = [value for _, value, _ in read(tmp_path)["x"]]
    np.testing.assert_equal(values, [float(np.float32(0.1)), math.inf, -math.inf, 7.0, -3.0, 1.0, math.nan])


def test_long_tags_and_many_values(tmp_path):
    # lengths of more than 127 and of more than 16383 bytes take two and three bytes
    values = {f"{'long' * 50}/{i}": float(i) for i in range(200)}
    events = Events(tmp_path)
    events.scalars(1, values, 5.0)
    events.close()
    assert {tag: points[0][1] for tag, points in read(tmp_path).items()} == values


def test_what_is_written_is_on_disk_at_once(tmp_path):
    events = Events(tmp_path)
    for step in range(3):
        events.scalars(step, {"x": step}, 0.0)
        assert [point[0] for point in read(tmp_path)["x"]] == list(range(step + 1))
    events.close()
    events.close()


def test_a_restart_is_another_file_that_undoes_the_steps_done_again(tmp_path):
    for steps in (range(0, 5), range(3, 8)):
        events = Events(tmp_path)
        for step in steps:
            events.scalars(step, {"x": 10 * steps.start + step}, float(step))
        events.close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    assert [point[:2] for point in read(tmp_path)["x"]] == [(0, 0), (1, 1), (2, 2), *((s, 30 + s) for s in range(3, 8))]


def test_a_damaged_record_is_noticed(tmp_path, monkeypatch):
    # otherwise the tests above would not show that TensorBoard looks at the checksums
    monkeypatch.setattr(tensorboard, "crc32c", lambda data: 0)
    events = Events(tmp_path)
    events.scalars(0, {"x": 1.0}, 0.0)
    events.close()
    assert read(tmp_path) == {}
