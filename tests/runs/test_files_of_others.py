"""No link, pipe or device in a run folder is opened, and no file of somebody else is touched, with --force or without."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forged_checkpoints import check_message
from support.tiny_runs import train_random

import capax
from capax.cli.main import main
from capax.core.errors import DiskFailed, InputError
from capax.envs import video
from capax.runs import folder, journal, tensorboard
from capax.runs.lock import locked
from capax.runs.run import Run

PRECIOUS = b"precious\n"
NAMES = ("config.json", "episodes.jsonl", "interrupted.jsonl", "running.jsonl", ".lock", "checkpoints/buffer.log",
         "checkpoints/buffer.parity", "checkpoints/episode-000009.safetensors", "checkpoints")  # fmt: skip
"""Names of ours in a run folder."""


def force(run: Path) -> Any:
    """Train in the place of a run."""
    return capax.train("capax/Integrator-v0", steps=100, method="random", out=run, force=True)


def refusal(action: Callable[[Path], Any], run: Path) -> str:
    """The sentence with which an action on a run is refused."""
    with pytest.raises((InputError, DiskFailed)) as caught:
        action(run)
    check_message(caught.value)
    return str(caught.value)


def snapshot(root: Path) -> dict[str, bytes | str]:
    """All files below a folder, and all links, by name."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def put_link(run: Path, name: str, target: Path) -> None:
    """Replace a part of a run by a link; the target is what it was before, or precious."""
    place = run / name
    if place.is_dir() or (place.exists() and name != ".lock"):
        shutil.move(place, target)
    else:
        place.unlink(missing_ok=True)
        target.write_bytes(PRECIOUS)
    place.symlink_to(target)


@pytest.mark.parametrize("action", [capax.resume, force], ids=["resume", "force"])
@pytest.mark.parametrize("name", NAMES)
def test_a_link_is_not_followed(run, tmp_path, name, action):
    put_link(run, name, tmp_path / "elsewhere")
    before = snapshot(tmp_path)
    assert "is a link" in refusal(action, run)
    after = snapshot(tmp_path)
    assert after.pop("run/.lock", None) is not None or name == ".lock"
    before.pop("run/.lock", None)
    assert after == before


@pytest.mark.parametrize("name", ["config.json", "episodes.jsonl", "interrupted.jsonl"])
def test_a_link_is_not_read(run, tmp_path, name):
    put_link(run, name, tmp_path / "elsewhere")
    read = {"config.json": lambda run: run.config, "episodes.jsonl": lambda run: run.episodes,
            "interrupted.jsonl": lambda run: run.interrupted}[name]  # fmt: skip
    assert "is a link" in refusal(read, Run(run))


def test_a_link_to_a_run_folder_is_followed(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    assert len(capax.resume(tmp_path / "link").episodes) == 5


@pytest.mark.parametrize("name", ["events.out.tfevents.1.here", "checkpoints/mine", "notes"])
def test_links_of_others_are_left_alone(run, tmp_path, name):
    put_link(run, name, tmp_path / "elsewhere")
    capax.resume(run)
    force(run)
    assert (run / name).is_symlink() and (tmp_path / "elsewhere").read_bytes() == PRECIOUS


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path):
    (tmp_path / "precious").write_bytes(PRECIOUS)
    (tmp_path / f".table.json.{os.getpid()}").symlink_to(tmp_path / "precious")
    assert "is a link" in refusal(lambda path: folder.write(path, "{}"), tmp_path / "table.json")
    assert (tmp_path / "precious").read_bytes() == PRECIOUS


def test_a_link_that_appears_after_the_look_is_not_followed(tmp_path, monkeypatch):
    # somebody may put it there between the look at a name and its opening
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "file").symlink_to(tmp_path / "precious")
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(folder, "_check_plain", lambda *_: None)
    with folder.Folder(tmp_path) as here:
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT):
            with pytest.raises(OSError, match="symbolic links"):
                os.close(here.open("file", flags))
        with pytest.raises(NotADirectoryError):
            here.subfolder("folder")
    assert not (tmp_path / "precious").exists()


def test_a_film_is_not_written_through_a_link(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    (tmp_path / "precious").write_bytes(PRECIOUS)
    for name in ("video.mp4", f".video.mp4.{os.getpid()}"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    frames = [np.zeros((16, 16, 3), np.uint8)] * 2
    assert "is a link" in refusal(lambda path: video.write(path, frames, 5), tmp_path / "video.mp4")
    (tmp_path / "video.mp4").unlink()
    video.write(tmp_path / "video.mp4", frames, 5)
    assert (tmp_path / "precious").read_bytes() == PRECIOUS


@pytest.mark.parametrize(
    "name", ["checkpoints/episode-000003.safetensors", "checkpoints/buffer.log", "episodes.jsonl", ".lock"]
)
def test_a_pipe_is_named_and_nothing_waits_for_it(run, name):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    for action in (capax.resume, force):
        assert f"{run / name} is a pipe" in refusal(action, run)
    assert (run / name).is_fifo() and not list(run.glob("checkpoints/*.damaged"))


def test_a_pipe_in_the_place_of_a_checkpoint_is_not_loaded(run):
    newest = run / "checkpoints/episode-000003.safetensors"
    newest.unlink()
    os.mkfifo(newest)
    assert "is a pipe" in refusal(capax.load, run)


# Files of others.


@pytest.mark.parametrize("more", [{}, {"force": True}, {"resume": True}], ids=str)
def test_checkpoints_and_curves_of_others_are_left_alone(tmp_path, more):
    out = tmp_path / "run"
    others = ("checkpoints/model.pt", "checkpoints/episode-3.safetensors", "checkpoints/.cache.123",
              "events.out.tfevents.1700000000.host", "events.out.tfevents.1700000000.host.123.0", "notes.txt",
              ".config.json.backup", ".episodes.jsonl.old")  # fmt: skip
    for name in others:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(PRECIOUS)
    assert len(train_random(out, **more).episodes) == 3
    assert len(train_random(out, force=True).episodes) == 3
    assert {(out / name).read_bytes() for name in others} == {PRECIOUS}


OTHERS = {
    "config.json": b'{"model_type": "bert"}\n',
    "episodes.jsonl": PRECIOUS,
    "interrupted.jsonl": PRECIOUS,
    "running.jsonl": PRECIOUS,
    "checkpoints/episode-000001.safetensors": PRECIOUS,
    "checkpoints/buffer.log": PRECIOUS,
    ".lock": PRECIOUS,
}


@pytest.mark.parametrize("more", [{}, {"force": True}], ids=str)
def test_rows_beside_a_configuration_of_another_program_are_not_overwritten(tmp_path, more):
    files = {"config.json": b'{"task": "Walker", "method": "sac", "seed": 0}\n', "episodes.jsonl": PRECIOUS}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert "choose another folder" in refusal(lambda run: train_random(run, **more), tmp_path)
    assert snapshot(tmp_path) == files


@pytest.mark.parametrize("more", [{}, {"force": True}], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_a_folder_where_others_have_files_of_our_names_is_refused(tmp_path, name, more):
    out = tmp_path / "run"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_bytes(OTHERS[name])
    assert "choose another folder" in refusal(lambda run: train_random(run, **more), out)
    assert snapshot(out) == {name: OTHERS[name]}  # not even a lock is there


def test_force_replaces_a_run_and_its_curves(run):
    events = {path for path in run.iterdir() if tensorboard.is_own(path.name)}
    force(run)
    assert len(Run(run).episodes) == 2 and not events & {*run.iterdir()}
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["episode-000001.safetensors", "episode-000002.safetensors"]


def test_force_replaces_a_run_whose_config_is_damaged(run):
    (run / "config.json").write_text("{")
    force(run)
    assert len(Run(run).episodes) == 2


def test_gridworld_does_not_overwrite_a_run(run, capsys):
    before = snapshot(run)
    with pytest.raises(SystemExit, match="2"):
        main(["gridworld", "--worlds", "1", "--out", str(run), "--force"])
    assert "holds a config.json" in capsys.readouterr().err and snapshot(run) == before


def test_gridworld_does_not_follow_links(tmp_path, capsys):
    (tmp_path / "precious").write_bytes(PRECIOUS)
    for name in ("worlds.jsonl", "table.json", ".lock"):
        out = tmp_path / f"out-{name}"
        out.mkdir()
        (out / name).symlink_to(tmp_path / "precious")
        with pytest.raises(SystemExit, match="2"):
            main(["gridworld", "--worlds", "1", "--out", str(out), "--force"])
        assert "is a link" in capsys.readouterr().err
    assert (tmp_path / "precious").read_bytes() == PRECIOUS


# Rows.


def test_a_last_row_that_differs_from_the_checkpoints_is_refused(run):
    path = run / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[-1]["cost"] += 1.0
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text)
    assert "and the checkpoint differ in the row of episode 2" in refusal(capax.resume, run)
    assert path.read_text() == text


# A disk that fails.


def test_a_disk_that_fails_while_everything_is_closed_is_one_sentence(tmp_path, monkeypatch):
    # the journal's last lines do not fit on the disk, and neither does anything that is tried on the way out
    real = os.fsync

    def full(handle: int) -> None:
        if handle < 0 or (tmp_path / "running.jsonl").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(journal.Journal, "close", lambda self: full(-1))
    with pytest.raises(DiskFailed, match=r"could not be written: No space left on device \(in episode 0"):
        train_random(tmp_path)


def test_a_disk_on_which_no_interrupted_row_fits_either_is_one_sentence(tmp_path, monkeypatch):
    real = os.fsync

    def full(handle: int) -> None:
        if (tmp_path / "running.jsonl").exists():  # the checkpoint after the first episode is the first to fail
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFailed, match=r"could not be written: No space left on device \(in episode 0"):
        train_random(tmp_path)


def test_a_lock_that_cannot_be_written_changes_no_error(tmp_path, monkeypatch):
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(KeyError), locked(tmp_path):
            raise KeyError
