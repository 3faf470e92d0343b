"""One damaged place in the files of a run costs nothing, and a checkpoint is set aside only if it is itself damaged."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forged_checkpoints import check_message, content_of, forge, newest_checkpoint
from support.tiny_runs import without_times

import capax
from capax.core.errors import Damaged, InputError
from capax.core.types import Episode
from capax.data.image_episodes import ImageBuffer
from capax.data.transitions import TransitionBuffer
from capax.runs import archive, checkpoint, parity
from capax.runs.buffer_log import BufferLog
from capax.runs.folder import Folder


def flip(path: Path, place: int, count: int = 1) -> None:
    """Change some bytes of a file."""
    data = bytearray(path.read_bytes())
    for at in range(place, place + count):
        data[at] ^= 1
    path.write_bytes(data)


def refusal(run: Path, action: Callable[[Path], Any] = capax.resume) -> str:
    """The sentence with which a run is refused; its checkpoints stay where they are."""
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    with pytest.raises(InputError) as caught:
        action(run)
    check_message(caught.value)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before
    return str(caught.value)


@pytest.fixture(scope="module")
def rows(trained, tmp_path_factory) -> list[dict[str, Any]]:
    """The rows of the run, if nothing is damaged."""
    return without_times(capax.resume(shutil.copytree(trained, tmp_path_factory.mktemp("whole") / "run")).episodes)


# The log.


@pytest.mark.parametrize(
    "damage",
    [
        lambda log: flip(log, 0),
        lambda log: flip(log, 30),
        lambda log: flip(log, 1500),
        lambda log: flip(log, log.stat().st_size - 1),
        lambda log: flip(log, 0, log.stat().st_size),
        lambda log: log.write_bytes(b""),
        lambda log: log.write_bytes(log.read_bytes()[:-40]),
    ],
    ids=["length", "header", "array", "digest", "all", "empty", "torn"],
)
def test_a_damaged_log_is_repaired(run, rows, damage, capsys):
    log = run / "checkpoints/buffer.log"
    before = log.read_bytes()
    damage(log)
    resumed = capax.resume(run)
    assert "it was repaired from buffer.parity" in capsys.readouterr().err
    assert without_times(resumed.episodes) == rows and not resumed.interrupted
    assert log.read_bytes().startswith(before) and not list(run.glob("checkpoints/*.damaged"))


def test_damaged_or_missing_parity_costs_nothing(run, rows):
    path = run / "checkpoints/buffer.parity"
    before = path.read_bytes()
    path.unlink()
    assert without_times(capax.resume(run).episodes) == rows
    assert path.read_bytes().startswith(before)  # it was written anew


def test_what_is_lost_is_named_and_nothing_is_moved(run):
    oldest = min((run / "checkpoints").glob("episode-*.safetensors"))
    flip(run / "checkpoints/buffer.log", content_of(oldest)[0]["log"] - 1)  # both need this record
    flip(run / "checkpoints/buffer.parity", 0, (run / "checkpoints/buffer.parity").stat().st_size)
    words = r"buffer\.log, byte \d+: its checksum does not fit its content, and buffer\.parity cannot repair it; it holds 50 of"
    assert re.search(words, refusal(run))


def episode_of(steps: int, start: int = 0) -> Episode:
    """An episode whose numbers say where they come from."""
    x = np.arange(start, start + steps, dtype=np.float32)
    return Episode(x[:, None], x[:, None], x, x, x[:, None] + 1, 0.0, 0.0, {}, np.zeros(steps))


def frames_of(steps: int) -> Episode:
    """An episode of images that differ."""
    images = np.random.default_rng(steps).integers(0, 255, (steps + 1, 64, 64, 3), np.uint8)
    zeros = np.zeros(steps, np.float32)
    return Episode(images[:-1], zeros[:, None], zeros, zeros, images[1:], 0.0, 0.0, {}, zeros)


def logged(path: Path, buffer: Any, episodes: list[Episode], capacity: int) -> tuple[Any, list[int]]:
    """The buffer after these episodes, which are logged one by one, and the end of the log after each."""
    log, ends = BufferLog(), []
    with Folder(path) as folder:
        for episode in episodes:
            buffer = buffer.add(episode, capacity)
            log.append(folder, buffer)
            ends.append(log.end.bytes)
    return buffer, ends


def restored(path: Path, buffer: Any, end: int) -> Any:
    """The buffer that a log of this length stands for."""
    with Folder(path) as folder:
        return BufferLog().restore(folder, end, buffer.size, buffer.added, type(buffer))


def test_a_damaged_record_that_nothing_needs_is_skipped(tmp_path):
    episodes = [episode_of(5, 5 * number) for number in range(4)]
    buffer, ends = logged(tmp_path, TransitionBuffer.empty(1, 1), episodes, capacity=10)
    (tmp_path / "buffer.parity").unlink()
    flip(tmp_path / "buffer.log", ends[0] - 40)
    np.testing.assert_array_equal(restored(tmp_path, buffer, ends[-1]).reward, np.arange(10, 20))
    flip(tmp_path / "buffer.log", ends[2] - 40)
    with pytest.raises(Damaged, match=rf"buffer\.log, byte {ends[1]}: .* it holds 5 of 10"):
        restored(tmp_path, buffer, ends[-1])


def test_parity_of_large_records_takes_a_sixteenth(tmp_path):
    # 100 images of 12 KiB: a record of 1.2 MB, which is cut into 16 stripes of 77 kB
    buffer, ends = logged(tmp_path, ImageBuffer(()), [frames_of(100), frames_of(101)], capacity=1000)
    size = (tmp_path / "buffer.parity").stat().st_size
    assert ends[-1] / 16 < size < ends[-1] / 15
    whole = (tmp_path / "buffer.log").read_bytes()
    for place, count in ((0, 4096), (ends[0] - 60_000, 60_000), (ends[0], 70_000)):
        flip(tmp_path / "buffer.log", place, count)
        again = restored(tmp_path, buffer, ends[-1])
        assert all(np.array_equal(a.image, b.image) for a, b in zip(again.episodes, buffer.episodes, strict=True))
        assert (tmp_path / "buffer.log").read_bytes() == whole
    flip(tmp_path / "buffer.log", 0, 200_000)  # three stripes
    with pytest.raises(Damaged, match="its header"):
        restored(tmp_path, buffer, ends[-1])


@pytest.mark.parametrize("length", [1, 2, 63, 65_536, 131_073, 1_200_003])
def test_any_stripe_is_repaired(length):
    record = np.random.default_rng(0).integers(0, 256, length, np.uint8).tobytes()
    count, size = parity.layout(length)
    xor, sums = parity.parity_of([record[:7], memoryview(record)[7:]], length)
    assert len(xor) == size and len(sums) == count and (count - 1) * size < length <= count * size
    for stripe in range(count):
        damaged = bytearray(record)
        damaged[stripe * size : (stripe + 1) * size] = bytes(len(damaged[stripe * size : (stripe + 1) * size]))
        assert parity.repaired(bytes(damaged), xor, sums) == record


def test_the_older_checkpoint_does_not_need_the_end_of_the_log(run, rows, capsys):
    capax.resume(run, steps=200)  # now the two checkpoints need different parts of the log
    newest = newest_checkpoint(run)
    (run / "checkpoints/buffer.parity").unlink()
    flip(run / "checkpoints/buffer.log", content_of(newest)[0]["log"] - 40)
    resumed = capax.resume(run, steps=250)
    assert f"{newest.name} is whole, but its part of the log is damaged" in capsys.readouterr().err
    assert without_times(resumed.episodes) == rows and [row["episode"] for row in resumed.interrupted] == [3]
    assert not list(run.glob("checkpoints/*.damaged"))


# What is no damage of the checkpoint.


def test_a_missing_log_is_named(run):
    (run / "checkpoints/buffer.log").unlink()
    assert refusal(run).endswith("buffer.log is missing: restore it, or retrain with --force.")


def test_another_precision_is_named(run):
    config = json.loads((run / "config.json").read_text())  # somebody has lost what the run was begun with
    (run / "config.json").write_text(json.dumps(config | {"switches": {}}))
    forge(run, lambda content, arrays: content["settings"]["switches"].update(jax_enable_x64=True))
    assert "set JAX_ENABLE_X64=1" in refusal(run)


def test_a_lack_of_memory_is_named(run, monkeypatch):
    def no_memory(*_: Any) -> Any:
        raise MemoryError

    for target, name in ((archive, "read"), (checkpoint.state, "restore")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, no_memory)
            assert "does not fit into memory" in refusal(run)


def test_another_agents_checkpoints_stay(run):
    newest = newest_checkpoint(run)
    forge(run, lambda content, arrays: content["state"]["fields"].update(more=1))
    newest.rename(run / "aside")
    forge(run, lambda content, arrays: content["state"]["fields"].update(more=1))
    (run / "aside").rename(newest)
    assert "or of another agent" in refusal(run)


def test_a_checkpoint_under_another_name_is_named(run):
    newest_checkpoint(run).rename(run / "checkpoints/episode-000009.safetensors")
    assert "holds the state after 3 episodes: give it back its name" in refusal(run)


@pytest.mark.parametrize("shape", [(2**61, 0), (2**40, 2**40, 0), (0, 2**61)])
def test_an_array_without_numbers_that_is_too_wide_is_damaged(run, shape):
    header = json.loads(bytes(archive.encoded({"0": np.zeros(0, np.float32)}, "{}")[1]))
    header["0"]["shape"] = shape
    encoded = json.dumps(header).encode()
    body = len(encoded).to_bytes(8, "little") + encoded
    newest_checkpoint(run).write_bytes(body + hashlib.sha256(body).digest())
    assert len(capax.resume(run).episodes) == 5  # from the one before it
    assert [path.name for path in run.glob("checkpoints/*.damaged")] == ["episode-000003.safetensors.damaged"]
