"""``python tests/kill_loop.py FOLDER KILLS SEED [SETTING …]``: kill -9 runs at random moments, resume them, compare the results.

Runs are children of a process that has loaded everything and trained nothing, so a start costs milliseconds. A setting is
repeated until it has had its share of the kills; every run that was killed must end with the bytes of one that was not.
With ``--tally FILE`` the kills, runs and mismatches per setting are added to the numbers in that file after every run; the
folder of a mismatch is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
from lightning_fabric.plugins.environments.lightning import find_free_network_port

from classgap.training import TrainConfig, train
from classgap.writing import write
from image_files import write_folder
from waiting import LOOPBACK

BASE = ["data.per_class=14", "batch=24", "model=mlp-16", "epochs=3", "checkpoint_steps=1", "optim.lr=0.05"]
PHOTOS = ["data.size=10", "data.augment=resized_crop,flip", "batch=8", "epochs=2"]
SETTINGS: dict[str, list[str]] = {
    "plain": [],
    "sam": ["wrapper=sam", "optim.clip=1"],
    "mr2": ["method=mr2"],
    "sam_lff": ["method=lff", "wrapper=sam"],
    "queue": ["method=elm", "method.queue=4", "method.num_features=16", "sampler=class_balanced"],
    "crt": ["stage=crt", "stage.passes=2", "epochs=2"],
    "teacher": ["method=gml", "epochs=2"],
    "adamw_mixup": ["optim.name=adamw", "optim.lr=0.002", "mix=mixup"],
    "ema": ["average=ema", "average.horizon=0.2"],
    "swa_norms": ["average=swa", "average.start=0.3", "model=resnet20", "data.per_class=5"],
    "lazy": PHOTOS,
    "bf16": ["precision=bf16-mixed", "method=compact_logits"],
    "drw_clip": [
        *("method=drw", "method.base=ldam", "optim.accumulate=2", "optim.clip=1"),
        *("data.profile=exponential", "data.imbalance=10"),
    ],
    "jtt": ["stage=jtt", "stage.first=0.34"],
    "ensemble": ["stage=ensemble", "stage.members=2", "epochs=2"],
    "distillation": ["stage=ensemble_teacher", "stage.members=2", "method=distillation", "epochs=2"],
    "gap_dial": ["stage=gap_dial", "checkpoint_steps=3"],
    "three_stage": ["stage=three_stage", "optim.name=adamw", "optim.lr=0.002"],
    "add_samples": ["stage=add_samples", "data.per_class=10", "data.spare=4", "epochs=2"],
    "views": ["method=supcon", "data.augment=crop", "epochs=2"],
    "experts": ["method=ncl", "epochs=2"],
    "wise": ["model.wise=0.5", "optim.name=adamw", "optim.lr=0.002", "checkpoint_steps=2", "schedule.warmup_steps=3"],
    "classes": ["stage=augment_classes", "data.augment=crop", "mix=confused_mixup", "epochs=2"],
    "two_processes": ["method=mr2", "average=ema", "average.horizon=0.2"],
    "sam_queue_two_processes": ["wrapper=sam", "method=elm", "method.queue=4", "method.num_features=16", "epochs=2"],
    "gap_dial_two_processes": ["stage=gap_dial", "epochs=2"],
    "lazy_two_processes": PHOTOS,
}
_ALONE_SECONDS = 6.0
COMPARED = ("model.safetensors", "predictions_test.npz", "predictions_val.npz")


def config_of(name: str, photos: Path) -> TrainConfig:
    data = [f"data={photos}", "data.per_class=none"] if name.startswith("lazy") else []
    return TrainConfig().override([*BASE, *SETTINGS[name], *data])


def start(name: str, folder: Path, photos: Path) -> list[int]:
    """Begin or resume a run in processes of their own; their ids."""
    world, port = 2 if name.endswith("two_processes") else 1, find_free_network_port()
    processes = []
    for rank in range(world):
        process = os.fork()
        if process:
            processes.append(process)
            continue
        code = 1
        try:
            os.setsid()  # its workers are killed with it
            os.dup2(os.open(folder.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            if world > 1:
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="kills")
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0")
                os.environ.update(WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), GLOO_SOCKET_IFNAME=LOOPBACK)
            lazy = {"memory": 0, "workers": 2} if name.startswith("lazy") else {}
            train(config_of(name, photos), folder, accelerator="cpu", resume=True, **lazy)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return processes


def finish(processes: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def ended(processes: list[int]) -> bool:
    return all(os.waitid(os.P_PID, p, os.WEXITED | os.WNOHANG | os.WNOWAIT) for p in processes)


def kill(process: int) -> None:
    """Kill a process and its workers; a process that has only just started has no group of its own yet."""
    for kill_one in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill_one(process, signal.SIGKILL)


def kill_randomly(name: str, folder: Path, photos: Path, duration: float, rng: random.Random) -> int:
    """A run that is killed again and again until it comes to its end; the number of kills."""
    kills = 0
    while True:
        processes = start(name, folder, photos)
        # In the first attempts anywhere, then only late: otherwise a slow machine would never come to an end.
        deadline = time.monotonic() + rng.uniform(0, duration) * (1 + kills / 4)
        while time.monotonic() < deadline and not ended(processes):
            time.sleep(0.002)
        if ended(processes):
            codes = finish(processes)
            assert not any(codes), f"{name} ended with {codes}: {folder.with_suffix('.out').read_text()[-3000:]}"
            return kills
        for process in rng.sample(processes, rng.randint(1, len(processes))):
            kill(process)
        # A process that is left alone notices that, except while it waits for the others to start. Launchers end it in both
        # cases, and so does this one, every other time at once.
        deadline = time.monotonic() + rng.choice([0.0, _ALONE_SECONDS])
        while time.monotonic() < deadline and not ended(processes):
            time.sleep(0.01)
        for process in processes:
            kill(process)
        finish(processes)
        kills += 1


def differences(folder: Path, whole: Path) -> list[str]:
    """What a resumed run has other than one that was never killed: weights, predictions, log, files left behind."""
    found = [
        file
        for file in COMPARED
        if (whole / file).exists() and (folder / file).read_bytes() != (whole / file).read_bytes()
    ]
    logs = [[json.loads(line) for line in (f / "log.jsonl").read_text().splitlines()] for f in (folder, whole)]
    if [{**line, "seconds": 0} for line in logs[0]] != [{**line, "seconds": 0} for line in logs[1]]:
        found.append("log.jsonl")
    return found + [str(path) for pattern in (".classgap-*", "*.tmp") for path in folder.rglob(pattern)]


def add_to_tally(file: Path, name: str, kills: int, mismatches: int) -> None:
    tally = json.loads(file.read_text()) if file.exists() else {"settings": {}}
    row = tally["settings"].setdefault(name, {"kills": 0, "runs": 0, "mismatches": 0})
    for key, value in {"kills": kills, "runs": 1, "mismatches": mismatches}.items():
        row[key] += value
        tally[key] = sum(other[key] for other in tally["settings"].values())
    write(file, json.dumps(tally, indent=1) + "\n")


def main(root: Path, kills: int, seed: int, names: list[str], tally: Path | None) -> int:
    """The number of runs that ended with other bytes than a run without kills."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    photos = write_folder(root / "photos", {"train": 10, "test": 4}, size=(17, 14), suffix=".jpg")
    rng, total, wrong, share = random.Random(seed), 0, 0, -(-kills // len(names))
    for name in names:
        began = time.monotonic()
        assert not any(finish(start(name, root / name, photos))), (root / f"{name}.out").read_text()[-3000:]
        duration, attempt, before = time.monotonic() - began, 0, total
        while total - before < share:
            folder = root / f"{name}-{attempt}"
            done = kill_randomly(name, folder, photos, duration, rng)
            found = differences(folder, root / name)
            if found:
                wrong += 1
                print(f"{name}: {found} differ from {root / name}", file=sys.stderr, flush=True)
            else:
                shutil.rmtree(folder)
            if tally:
                add_to_tally(tally, name, done, bool(found))
            total, attempt = total + done, attempt + 1
            print(f"{name}: {total - before} kills so far", file=sys.stderr, flush=True)
        print(f"{name}: {total - before} kills in {attempt} runs", flush=True)
    print(f"{total} kills, {wrong} runs with other bytes than a run without", flush=True)
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kills", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("settings", nargs="*", choices=[*SETTINGS, []])
    parser.add_argument("--tally", type=Path)
    given = parser.parse_args()
    sys.exit(min(1, main(given.folder, given.kills, given.seed, given.settings or list(SETTINGS), given.tally)))
