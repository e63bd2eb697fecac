"""The manifests of the page about Kubernetes: their settings start engines that find each other."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pages import DOCS

import tent

TEXT = (DOCS / "operate" / "kubernetes.md").read_text(encoding="utf-8")
MANIFESTS = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)
SETTINGS = [json.loads(text) for text in re.findall(r"value: '(\{.*?\})'\n", "\n".join(MANIFESTS), re.S)]


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page's Secrets, as the issuer of the page makes them."""
    folder = tmp_path_factory.mktemp("secret")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test")
    openssl(folder, "req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.crt", "-days", "1")
    (uri,) = re.findall(r'uris: \["(.*)"\]', TEXT)
    openssl(folder, "req", *curve, "-addext", f"subjectAltName=URI:{uri}", "-keyout", "tls.key", "-out", "tls.csr")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-copy_extensions", "copy", "-days", "1")
    openssl(folder, "x509", "-req", "-in", "tls.csr", *signed, "-out", "tls.crt")
    (folder / "cluster.key").write_bytes(os.urandom(32))
    for file in folder.iterdir():
        file.chmod(0o600)
    return folder


def in_a_pod(settings: dict[str, Any], secret: Path) -> dict[str, Any]:
    """Settings as they are in a container, but for the network: the kubelet expands variables and mounts files."""
    text = json.dumps(settings).replace("$(POD_IP)", "127.0.0.1").replace("$(POD_NAME).decode.serving.svc", "localhost")
    text = text.replace("$(POD_NAME)", "decode-0").replace("/etc/tent", str(secret)).replace("/run/tent", str(secret))
    assert "$(" not in text
    found = dict(json.loads(text))
    found["rpc_server_port"] = found["transports"]["tcp"]["port"] = 0
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=["certificates", "key"])
def test_engines_with_the_settings_of_the_page_find_each_other(settings: dict[str, Any], secret: Path) -> None:
    decode = in_a_pod(settings, secret)
    prefill = json.loads(json.dumps(decode).replace("serving/prefill", "serving/decode"))
    (own,) = re.findall(r'uris: \["(.*)"\]', TEXT)
    if "allow" in decode["security"]:
        assert decode["security"]["allow"] == ["spiffe://serving/prefill"], "the page's decode admits prefill alone"
        decode["security"]["allow"] = [own]  # the test has the one certificate of the page
    with tent.Engine(decode) as owner, tent.Engine(prefill) as opener:
        kv, page = owner.allocate(4096, name="kv"), opener.allocate(4096)
        page.view[:] = bytes(range(256)) * 16
        with opener.open(owner.address, wait=True, timeout=10) as peer:
            assert owner.address.startswith("localhost:")
            opener.write(page, peer["kv"]).result(timeout=10)
        assert bytes(kv.view) == bytes(range(256)) * 16


def test_ports_and_files_of_the_manifests_are_those_of_the_settings() -> None:
    ports = {int(port) for port in re.findall(r"(?:port|containerPort): (\d+)", "\n".join(MANIFESTS))}
    mounts = set(re.findall(r"mountPath: ([\w/]+)", "\n".join(MANIFESTS)))
    for settings in SETTINGS:
        assert ports == {settings["rpc_server_port"], settings["transports"]["tcp"]["port"]}
        files = [value for key, value in settings["security"].items() if key != "allow"]
        assert files and {os.path.dirname(file) for file in files} <= mounts
