"""Certificates for servers on this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Certificate and key for 127.0.0.1; skips the test where they can't be made."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    chain, key = folder / "server.pem", folder / "server.key"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    request = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*request, "-days", "2", "-keyout", key, "-out", chain, *names], check=True, capture_output=True)
    return chain, key
