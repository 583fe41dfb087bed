"""The stubs: complete, as the extension module has them, and enough for programs in mypy's strict mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOM = Path(__file__).resolve().parent.parent


def run(*command: str, cwd: Path) -> str:
    """Its output, empty when it found nothing."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr)  # pytest shortens what it compares
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_stubs_are_what_the_module_has(tmp_path: Path) -> None:
    assert run("mypy.stubtest", "--ignore-disjoint-bases", "timevisor._timevisor", cwd=tmp_path) == ""


def test_package_examples_and_tests_pass_mypy_strict(tmp_path: Path) -> None:
    files = [*ROOM.glob("examples/*.py"), *ROOM.glob("tests/*.py")]
    assert run("mypy", "--strict", "--cache-dir", str(tmp_path), "-p", "timevisor", cwd=tmp_path) == ""
    assert run("mypy", "--strict", "--cache-dir", str(tmp_path), *map(str, files), cwd=tmp_path) == ""


def test_mypy_finds_what_is_wrong(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(
        "import timevisor\n"
        "client = timevisor.connect()\n"
        "client.timeline('tai').wait_until(1e9)\n"
        "client.timeline('tai').sleep(0.01)\n"
        "client.timeline('tai').now().met = True\n"
        "reveal_type(client.bind('tai').wait_until(0).lateness_ns)\n"
    )
    found = run("mypy", "--strict", "--cache-dir", str(tmp_path), program.name, cwd=tmp_path)
    for line in (3, 4, 5):
        assert f"wrong.py:{line}: error" in found, found
    assert "Found 3 errors" in found and 'wrong.py:6: note: Revealed type is "int"' in found, found
