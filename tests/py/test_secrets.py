"""No secret of the settings is in a text, a blob or a file that an engine makes."""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import tent


def forms(secret: bytes) -> list[bytes]:
    """A secret as it could be printed; half of it is a leak, too."""
    half = secret[: len(secret) // 2]
    texts = [secret, half.hex().encode(), half.hex().upper().encode(), repr(half)[2:-1].encode()]
    for before in range(3):  # base64 of a longer text has it at any of three places in a group
        texts.append(base64.b64encode(bytes(before) + secret)[4 if before else 0 : -4])
        texts.append(base64.urlsafe_b64encode(bytes(before) + secret)[4 if before else 0 : -4])
    return [*texts, str(list(half))[1:-1].encode(), str(list(half))[1:-1].replace(",", "").encode()]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A cluster key, and the files of an issuer."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", "-days", "1")
    openssl("req", *new, "-addext", "subjectAltName=DNS:me.svc", "-keyout", "me.key", "-out", "me.csr")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-copy_extensions", "copy", "-days", "1")
    openssl("x509", "-req", "-in", "me.csr", *signed, "-out", "me.crt")
    (tmp_path / "cluster.key").write_bytes(b"tent-" + base64.b64encode(os.urandom(48)))
    (tmp_path / "word").write_text("pass-" + os.urandom(16).hex())
    for file in tmp_path.iterdir():
        file.chmod(0o600)
    return tmp_path


def settings_of(mode: str, files: Path) -> dict[str, Any]:
    certificates = {"ca": str(files / "ca.crt"), "cert": str(files / "me.crt"), "key": str(files / "me.key")}
    modes = {
        "cluster_key": {"cluster_key": str(files / "cluster.key")},
        "mtls": {**certificates, "allow": ["dns:me.svc"]},
    }
    redis = {"metadata_type": "redis", "metadata_servers": "127.0.0.1:1", "metadata_timeout": 0.2}
    return {**redis, "metadata_password_file": str(files / "word"), "metadata_user": "me", "security": modes[mode]}


def secrets_of(mode: str, files: Path) -> dict[str, bytes]:
    if mode == "cluster_key":
        secret = (files / "cluster.key").read_bytes()
    else:
        lines = (files / "me.key").read_text().splitlines()
        body = [line for line in lines if not line.startswith("-")]
        secret = base64.b64decode("".join(body))[36:68]  # of SEC 1
        return {mode: secret, "the key file": body[1].encode(), "password": (files / "word").read_bytes()}
    return {mode: secret, "password": (files / "word").read_bytes()}


def shown(mode: str, files: Path) -> dict[str, bytes]:
    """All that an engine and a peer of it show, by its origin."""
    texts: dict[str, object] = {}
    settings = settings_of(mode, files)
    settings["security"]["audit"] = str(files / "audit.jsonl")
    settings["log_level"] = "debug"
    with tent.Engine(settings) as owner, tent.Engine(settings) as opener, owner.events() as events:
        kv, page = owner.allocate(4096, name="kv"), opener.allocate(4096)
        with opener.open(owner.address) as peer:
            transfer = opener.write(page, peer["kv"], trace="a trace")
            transfer.result(timeout=10)
            texts |= {"explain": opener.explain(page, peer["kv"]), "segment": (peer, peer["kv"], peer.identity)}
            texts |= {"transfer": transfer, "regions": (kv, page), "peers": owner.peers()}
        for target in ("nobody", "127.0.0.1:1"):
            with pytest.raises(tent.TentError) as refused:
                opener.open(target)
            texts[f"error {target}"] = (refused.value, repr(refused.value))
        with tent.Engine() as stranger, pytest.raises(tent.TentError) as refused:
            stranger.open(owner.address)
        texts |= {"refusal": refused.value, "events": [events.wait_for("peer_refused", timeout=10)]}
        served = tent.serve_metrics(owner)
        with urllib.request.urlopen(served.url, timeout=10) as answer:
            texts["metrics"] = answer.read().decode()
        texts |= {"engines": (owner, opener), "config": {k: (repr(v), v.value) for k, v in owner.config.items()}}
        texts |= {"topology": owner.topology(), "flat": owner.metrics(), "text": owner.metrics_text()}
        texts |= {"traffic": owner.traffic(), "trace of an error": traceback_of(owner)}
        with kv.share(kv[0:64], "a lease") as lease:
            texts["lease"] = (lease, lease.token)
        blob = owner.export()
    return {
        **{origin: str(text).encode() for origin, text in texts.items()}, "blob": blob,
        "audit": (files / "audit.jsonl").read_bytes(),
    }  # fmt: skip


def traceback_of(engine: tent.Engine) -> str:
    """An error with all of its frames and their variables, as tools that report errors print them."""
    try:
        pickle.dumps(engine)
    except TypeError as error:
        return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    raise AssertionError("an engine was pickled")


@pytest.mark.parametrize("mode", ["cluster_key", "mtls"])
def test_no_secret_is_shown(mode: str, files: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    found = shown(mode, files)
    config = json.dumps(settings_of(mode, files))
    command = [sys.executable, "-m", "tent", "doctor", "--config", config]
    doctor = subprocess.run(command, capture_output=True, timeout=60)
    found |= {"doctor": doctor.stdout + doctor.stderr, "log": caplog.text.encode()}
    assert b"peer_refused" in found["audit"] and b"127.0.0.1:1" in found["doctor"]
    assert str(files / "word").encode() in found["config"], "the place of a secret is no secret"
    for name, secret in secrets_of(mode, files).items():
        assert len(secret) >= 32
        for origin, text in found.items():
            assert not [form for form in forms(secret) if form in text], f"{name} is in {origin}"
