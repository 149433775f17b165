from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from weft.errors import DataError
from weft.sources.download import fetch

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REQUESTS: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        REQUESTS.append(self.path)
        if self.path == "/gone":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:1000] if self.path == "/cut" else CONTENT)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    REQUESTS.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_a_file_is_downloaded_once(server: str, tmp_path: Path) -> None:
    path = fetch(f"{server}/set/data.bin?x=1", SHA256, folder=tmp_path, progress=False)
    assert path == tmp_path / "data.bin"
    assert path.read_bytes() == CONTENT
    assert fetch(f"{server}/set/data.bin?x=1", SHA256, folder=tmp_path, progress=False) == path
    assert len(REQUESTS) == 1


def test_progress_is_drawn_on_standard_error(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(f"{server}/data.bin", SHA256, folder=tmp_path, name="loud.bin")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "loud.bin" in shown.err
    assert "256.0/256.0 kB" in shown.err
    fetch(f"{server}/data.bin", SHA256, folder=tmp_path, name="quiet.bin", progress=False)
    assert capsys.readouterr().err == ""


def test_another_file_than_expected_is_not_kept(server: str, tmp_path: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(DataError, match=rf"/data\.bin has a file whose SHA-256 is not {wrong}"):
        fetch(f"{server}/data.bin", wrong, folder=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_file_in_its_place_is_replaced(server: str, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"half")
    path = fetch(f"{server}/data.bin", SHA256, folder=tmp_path, progress=False)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("page", ["gone", "cut"])
def test_a_server_that_fails_leaves_nothing(server: str, tmp_path: Path, page: str) -> None:
    with pytest.raises(DataError, match=rf"/{page} cannot be downloaded .* put it at .*{page}"):
        fetch(f"{server}/{page}", SHA256, folder=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_offline_names_the_address_and_where_to_put_the_file(tmp_path: Path) -> None:
    # Nobody listens on port 1, as on a machine without a network.
    url = "http://127.0.0.1:1/data.bin"
    with pytest.raises(DataError) as caught:
        fetch(url, SHA256, folder=tmp_path, progress=False)
    assert str(caught.value).startswith(f"{url} cannot be downloaded (")
    assert str(tmp_path / "data.bin") in str(caught.value)
    (tmp_path / "data.bin").write_bytes(b"another file")
    with pytest.raises(DataError, match=f"but it is another file: its SHA-256 is not {SHA256}"):
        fetch(url, SHA256, folder=tmp_path, progress=False)
    (tmp_path / "data.bin").write_bytes(CONTENT)
    assert fetch(url, SHA256, folder=tmp_path, progress=False) == tmp_path / "data.bin"


def test_a_full_disk_is_one_clear_error(server: str, tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from weft.errors import DataError
        from weft.sources.download import fetch

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            fetch(sys.argv[1], sys.argv[2], folder=Path(sys.argv[3]), progress=False)
        except DataError as error:
            assert "no room" in str(error) and sys.argv[3] in str(error), error
        else:
            raise AssertionError("written in spite of the limit")
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", script, f"{server}/data.bin", SHA256, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    assert list(tmp_path.iterdir()) == []
