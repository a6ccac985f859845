"""Downloads from a real server on this machine: resumed, verified, unpacked as a whole; and what is said without a network."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from classgap.checks import InputError
from classgap.data.catalogue import SOURCES, KnownSet
from classgap.data.downloads import Remote, _has_digest, download, unpack
from classgap.data.stand_ins import stand_in
from command_line import call

CONTENT = bytes(range(256)) * 40_000  # 10 MB


class _Server(ThreadingHTTPServer):
    files: dict[str, bytes]
    asked: list[str]
    cut: int | None = None


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted or "")
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(re.findall(r"\d+", wanted)[0]) if wanted else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content) if self.server.cut is None else self.server.cut
        self.wfile.write(content[start:end])

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as running:
        running.files, running.asked = {"/big.bin": CONTENT}, []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def _remote(server: _Server, name: str = "big.bin", **options: Any) -> Remote:
    return Remote(f"http://127.0.0.1:{server.server_address[1]}/{name}", "here", **options)


def test_an_interrupted_download_continues(server: _Server, tmp_path: Path) -> None:
    remote = _remote(server, digest=f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    server.cut = 4_000_000
    with pytest.raises(
        InputError, match=r"cannot be downloaded .*; run the command again to continue, or put the file at"
    ):
        download(remote, tmp_path)
    arrived = (tmp_path / "here" / "big.bin.part").stat().st_size
    assert 0 < arrived <= 4_000_000
    assert not (tmp_path / "here" / "big.bin").exists()
    server.cut = None
    told: list[tuple[int, int | None]] = []
    path = download(remote, tmp_path, lambda name, there, whole: told.append((there, whole)))
    assert path.read_bytes() == CONTENT
    assert server.asked == ["", f"bytes={arrived}-"]
    assert told[-1] == (len(CONTENT), len(CONTENT))
    download(remote, tmp_path)
    assert len(server.asked) == 2  # it is there


def test_a_part_that_is_whole_already_is_accepted(server: _Server, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "big.bin.part").write_bytes(CONTENT)
    assert download(_remote(server), tmp_path).read_bytes() == CONTENT


def test_wrong_content_is_refused(server: _Server, tmp_path: Path) -> None:
    remote = _remote(server, digest="md5:00000000000000000000000000000000")
    with pytest.raises(InputError, match="is not the published file"):
        download(remote, tmp_path)
    assert not list((tmp_path / "here").iterdir())
    (tmp_path / "here" / "big.bin").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"big.bin is damaged or another version .*; remove it and try again"):
        download(remote, tmp_path)
    with pytest.raises(InputError, match=r"cannot be downloaded \(Not Found\)"):
        download(_remote(server, "none.bin"), tmp_path)


def test_digest_of_git(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("hello\n")
    assert _has_digest(tmp_path / "f", "git:ce013625030ba8dba906f756967f9e9ca394464a")  # git hash-object
    assert not _has_digest(tmp_path / "f", "git:ce013625030ba8dba906f756967f9e9ca394464b")


def test_unpacking_is_all_or_nothing_and_stays_inside(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("one/1.txt", "one/2.txt"):
            info = tarfile.TarInfo(name)
            info.size = 1000
            tar.addfile(info, io.BytesIO(b"x" * 1000))
    unpack(archive, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").rglob("*")) == ["1.txt", "2.txt", "one"]
    archive.write_bytes(archive.read_bytes()[:1200])
    with pytest.raises(InputError, match=r"a\.tar cannot be unpacked"):
        unpack(archive, tmp_path / "cut")
    assert not list((tmp_path / "cut").iterdir())
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("../outside.txt"))
    with pytest.raises(InputError, match=r"a\.tar cannot be unpacked"):
        unpack(archive, tmp_path / "leave")
    assert not (tmp_path / "outside.txt").exists()


def test_prepare_downloads_unpacks_and_counts(server: _Server, tmp_path: Path) -> None:
    made = stand_in("cifar10", tmp_path / "made")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(made / "cifar-10-batches-py", "cifar-10-batches-py")
    server.files["/cifar.tar.gz"] = archive.getvalue()
    remote = Remote(_remote(server, "cifar.tar.gz").url, "", unpack=True)
    real = SOURCES["cifar10"]
    small = KnownSet(real.about, real.read, (200, 0, 60), 10, real.needs, (remote,))
    assert len(small.prepare("cifar10", tmp_path / "data").y_train) == 200
    small.prepare("cifar10", tmp_path / "data")
    assert len(server.asked) == 1  # nothing was missing the second time
    with pytest.raises(InputError, match="has 200 training samples here, but 50000 are published"):
        KnownSet(real.about, real.read, real.counts, 10, real.needs, (remote,)).prepare("cifar10", tmp_path / "data")


def test_without_a_network_and_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from classgap.cli.app import app

    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name in ("cifar100", "places_lt", "food101"):
        found = CliRunner().invoke(app, ["data", "prepare", name, "--root", str(tmp_path)])
        assert isinstance(found.exception, InputError)
        assert re.search(r"cannot be downloaded \(.*refused\); run the command again", str(found.exception))
        if name == "places_lt":  # every file that is missing has its place
            assert str(found.exception).count(str(tmp_path / "places_lt" / "Places_LT_")) == 3
    for name, way_out in (("imagenet", "image-net.org"), ("stanford_cars", "cars_train.tgz")):
        with pytest.raises(InputError, match=rf"{name} lacks .* in {tmp_path}\. .*{way_out}.*{tmp_path}/{name}"):
            SOURCES[name].prepare(name, tmp_path)


def test_a_cut_archive_of_imagenet_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    folder = tmp_path / "imagenet"
    folder.mkdir()
    (folder / "ILSVRC2012_img_train.tar").write_bytes(b"cut")
    with pytest.raises(InputError, match=r"ILSVRC2012_img_train\.tar is damaged or cut off; download it again"):
        SOURCES["imagenet"].prepare("imagenet", tmp_path)
    assert not (folder / "train").exists()


def test_the_list_of_data_sets_is_complete_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from classgap.cli.app import app

    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["data", "list"]).stdout
    assert all(name in shown for name in SOURCES)
    assert "FILE.safetensors" in shown
    assert "datas…" not in shown.casefold()


def test_urls_and_digests_are_those_of_torchvision() -> None:
    """torchvision's maintainers keep them up to date."""
    datasets = pytest.importorskip("torchvision").datasets
    ours = {remote.url: remote.digest.removeprefix("md5:") for known in SOURCES.values() for remote in known.remotes}
    theirs = {datasets.CIFAR10.url: datasets.CIFAR10.tgz_md5, datasets.CIFAR100.url: datasets.CIFAR100.tgz_md5}
    theirs |= {datasets.Food101._URL: datasets.Food101._MD5, datasets.FGVCAircraft._URL: ""}
    theirs |= dict(datasets.OxfordIIITPet._RESOURCES)
    theirs |= {datasets.Flowers102._download_url_prefix + f: md5 for f, md5 in datasets.Flowers102._file_dict.values()}
    for reader in (datasets.MNIST, datasets.FashionMNIST):
        theirs |= {reader.mirrors[0] + file: md5 for file, md5 in reader.resources}
    places = datasets.Places365
    for file, md5 in (
        places._DEVKIT_META["standard"],
        *(places._IMAGES_META[k, True] for k in ("train-standard", "val")),
    ):
        theirs[places._BASE_URL + file] = md5
    theirs[datasets.inaturalist.DATASET_URLS["2018"]] = datasets.inaturalist.DATASET_MD5["2018"]
    assert {url: ours.get(url) for url in theirs} == theirs


def test_a_file_where_the_folder_of_the_data_should_be(tmp_path: Path) -> None:
    """The system's own words are "File exists" and "Not a directory"."""
    (file := tmp_path / "file").write_text("")
    assert f"{file}: this is a file, and a folder is needed" in call("data", "prepare", "cifar10", "--root", file).err
    assert "a part of this path is a file" in call("data", "prepare", "cifar10", "--root", file / "deeper").sentence
