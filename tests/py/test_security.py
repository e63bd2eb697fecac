"""Whom an engine admits: the modes of security, from Python."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peer_side
import pytest

import tent
from tent.testing import Memory, PeerProcess

SIZE = 1 << 20

Start = Callable[..., PeerProcess]
Open = Callable[..., tent.Engine]


@pytest.fixture
def key(tmp_path: Path) -> Callable[[int], str]:
    """Writes a key file; equal numbers are equal keys."""

    def write(number: int) -> str:
        path = tmp_path / f"{number}.key"
        path.write_bytes(bytes([number]) * 32)
        path.chmod(0o600)
        return str(path)

    return write


@pytest.mark.parametrize(("data", "said"), [("auth", "not sealed"), ("sign", "signed by"), ("encrypt", "encrypted by")])
def test_two_processes_with_one_key_move_bytes(
    key: Callable[[int], str], engines: Open, peers: Start, keep: Any, data: str, said: str
) -> None:
    settings = {"security/cluster_key": key(1)}
    engine, peer = engines(config=settings, security={"data": data}), peers(SIZE, 9, settings)
    with engine.open(peer.address) as segment:
        assert len(segment.peer_id) == 32 and segment.identity.startswith("cluster:")
    ours, half = Memory(SIZE, 3), SIZE // 2
    local, remote = keep(engine.register(ours.view)), engine.open(peer.address)["kv"]
    engine.write(local[0:half], remote[half:SIZE]).result(10)
    assert said in engine.explain(local[0:half], remote[0:half])["routes"][0]["detail"]
    assert peer.run(peer_side.check, written=[[half, half, 3, 0]]) == ""
    engine.read(local[half:SIZE], remote[0:half]).result(10)
    ours.expect(half, Memory(SIZE, 9).expected[:half])
    ours.check()


def test_other_keys_are_refused_with_the_cause_on_both_sides(
    key: Callable[[int], str], engines: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    ours, theirs = engines(security={"cluster_key": key(1)}), engines(security={"cluster_key": key(2)})
    with theirs.events() as events:
        with pytest.raises(tent.PermissionDeniedError, match="does not hold the key file") as caught:
            ours.open(theirs.address)
        assert caught.value.code == "PEER_NOT_ADMITTED"
        assert theirs.address in str(caught.value) and "insecure" not in str(caught.value)
        refused = events.wait_for("peer_refused", timeout=10)
        assert "bad certificate" in refused.error
    assert theirs.metrics()['tent_refused_total{plane="control",reason="identity"}'] == 1


def test_an_engine_without_the_key_is_refused_by_the_member(key: Callable[[int], str], engines: Open) -> None:
    member = engines(security={"cluster_key": key(1)})
    with member.events() as events:
        with pytest.raises(tent.PermissionDeniedError, match="its log has the reason") as caught:
            engines().open(member.address)
        assert caught.value.code == "PEER_NOT_ADMITTED"
        assert "does not hold the key file" in events.wait_for("peer_refused", timeout=10).error


@pytest.mark.parametrize(
    "settings",
    [
        {"rpc_server_hostname": "0.0.0.0"},
        {"rpc_server_hostname": "::"},
        {"transports": {"tcp": {"addresses": ["127.0.0.1", "192.0.2.7"]}}},
    ],
    ids=str,
)
def test_nothing_listens_beyond_loopback_without_a_key(settings: dict[str, Any]) -> None:
    with pytest.raises(tent.InvalidArgumentError, match="other hosts") as caught:
        tent.Engine(settings)
    text = str(caught.value)
    assert 0 < text.index("cluster_key") < text.index("insecure=true")


def test_metrics_are_not_served_beyond_loopback_without_a_key(engine: tent.Engine) -> None:
    with pytest.raises(tent.InvalidArgumentError, match=r"metrics/listen is 0\.0\.0\.0"):
        tent.serve_metrics(engine, host="0.0.0.0")


def test_a_local_peer_is_known_by_its_user(engines: Open) -> None:
    with engines().open(engines().address) as segment:
        assert segment.identity == f"uid:{os.geteuid()}"


def test_insecure_is_seen(engines: Open, caplog: pytest.LogCaptureFixture) -> None:
    engine = engines(insecure=True, rpc_server_hostname="0.0.0.0", rpc_advertise_hostname="127.0.0.1")
    assert engine.metrics()["tent_insecure"] == 1
    assert engines().metrics()["tent_insecure"] == 0
    engine.close()
    assert len([r for r in caplog.records if "insecure is true" in r.getMessage()]) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"security": {"cert": "me.pem"}}, "security/allow is empty: no certificate is admitted"),
        ({"security": {"cert": "me.pem", "allow": ["*"]}}, 'security/cert: cannot read ".*/me.pem"'),
        ({"security": {"ca": "ca.pem", "allow": ["*"]}}, "security/cert: it is not set; mode mtls needs"),
        ({"security": {"ca": "ca.pem", "allow": ["prefill"]}}, "security/allow: .prefill. is no pattern"),
        ({"security": {"ca": "ca.pem", "allow": ["*"], "cluster_key": "x"}}, "exclude each other"),
        ({"security": {"data": "seal"}}, "security/data: .seal. is out of range: it takes one of auth, sign, encrypt"),
        ({"security": {"data_except": ["ib"]}}, "security/data_except: there is no transport .ib."),
        ({"security": {"allow": {"a": 1}}}, "security/allow: .* has the wrong type"),
        ({"security": {"mode": "local"}}, "security/mode: not in this version"),
        ({"security": {"cluster": "x"}}, 'unknown setting "security/cluster".*"security/cluster_key"'),
        ({"security": True}, "security: true has the wrong type"),
        ({"security": {"cluster_key": "/no/such/key"}}, "no such file or directory"),
        ({"security": {"cluster_key": "/dev/zero"}}, '"/dev/zero" is no file'),
        ({"security": {"local_users": ["no-such-user"]}}, "no user of this host is named"),
        ({"security": {"cluster_key": "x"}, "insecure": True}, "exclude each other"),
        ({"security": {"local_users": ["any"]}, "insecure": True}, "exclude each other"),
        ({"security": {"cluster_key": "x", "local_users": ["any"]}}, "exclude each other"),
    ],
    ids=str,
)
def test_wrong_settings_say_what_there_is(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(tent.InvalidArgumentError, match=says):
        tent.Engine(settings)


@pytest.mark.parametrize(("size", "mode", "says"), [(31, 0o600, "31 bytes"), (32, 0o640, "0640"), (32, 0o604, "0604")])
def test_a_key_file_that_protects_nothing_is_refused(tmp_path: Path, size: int, mode: int, says: str) -> None:
    path = tmp_path / "cluster.key"
    path.write_bytes(bytes(size))
    path.chmod(mode)
    with pytest.raises(tent.InvalidArgumentError, match=says) as caught:
        tent.Engine(security={"cluster_key": str(path)})
    assert "security/cluster_key" in str(caught.value)


def test_the_key_may_come_from_the_environment(
    key: Callable[[int], str], engines: Open, peers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENT_CONF", json.dumps({"security": {"cluster_key": key(1)}}))
    member = peers()
    assert engines(security={"cluster_key": key(1)}).open(member.address).alive(timeout=10)


def test_a_blob_authenticates_its_engine(engines: Open, port: int) -> None:
    """The blob has the fingerprint of a key: another engine at the address is not taken for the one that made it."""
    made, other = engines(rpc_server_port=port), engines()
    blob = made.export()
    forged = bytes(blob).replace(made.address.encode(), other.address.encode())
    if len(forged) == len(blob):  # the ports have equally many digits
        with pytest.raises(tent.InvalidArgumentError, match="checksum"):
            engines().open(forged)
    address = made.address
    made.close()
    with engines(rpc_server_port=port) as successor:
        assert successor.address == address
        with engines().open(blob) as segment, pytest.raises(tent.PeerRestartedError):
            segment.refresh()


def test_keys_appear_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the bytes of the file nor a text of them is in anything that an engine shows."""
    caplog.set_level(logging.DEBUG)
    secret = os.urandom(24).hex().encode()  # also readable, if it leaks as text
    path = tmp_path / "cluster.key"
    path.write_bytes(secret)
    path.chmod(0o600)
    with tent.Engine(security={"cluster_key": str(path)}, log_level="debug") as engine, engine.events() as events:
        region = engine.allocate(4096, name="kv")
        with engine.open(engine.address) as segment:
            engine.write(region, segment["kv"]).result(10)
            shown = [repr(engine), repr(engine.config), json.dumps({k: str(v) for k, v in engine.config.items()})]
            shown += [engine.metrics_text(), str(engine.metrics()), repr(events), repr(segment), segment.peer_id]
            blob = bytes(engine.export())
    texts = "\n".join([*shown, caplog.text]).encode()
    for form in (secret, secret.hex().encode(), base64.b64encode(secret), bytes.fromhex(secret.decode())):
        assert form not in blob and form not in texts


@pytest.fixture
def issue(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Issues certificates of one authority, by openssl; a second call for a name replaces its files."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=tmp_path, timeout=30)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt", "-days", "1")

    def write(name: str, identity: str) -> dict[str, str]:
        request = ["req", *new, "-subj", "/CN=x", "-addext", f"subjectAltName={identity}"]
        openssl(*request, "-keyout", f"{name}.key.new", "-out", f"{name}.csr")
        sign = ["-CA", "ca.crt", "-CAkey", "ca.key", "-copy_extensions", "copy", "-days", "1"]
        openssl("x509", "-req", "-in", f"{name}.csr", *sign, "-out", f"{name}.crt.new")
        for kind in ("key", "crt"):
            (tmp_path / f"{name}.{kind}.new").rename(tmp_path / f"{name}.{kind}")
        return {
            "ca": str(tmp_path / "ca.crt"),
            "cert": str(tmp_path / f"{name}.crt"),
            "key": str(tmp_path / f"{name}.key"),
        }

    return write


def test_certificates_give_rights_by_identity(issue: Callable[..., dict[str, str]], engines: Open) -> None:
    owner = engines(security={**issue("owner", "URI:spiffe://prod/owner"), "allow": ["*"]})
    friend = engines(security={**issue("friend", "URI:spiffe://prod/prefill/0"), "allow": ["spiffe://prod/owner"]})
    other = engines(security={**issue("other", "DNS:other.svc"), "allow": ["*"]})
    kv = owner.allocate(4096, name="kv", peers="spiffe://prod/prefill/*")
    everybodys = owner.allocate(4096, name="all")
    source = friend.allocate(4096)
    with friend.open(owner.address, identity=["spiffe://prod/owner"]) as segment:
        assert segment.identity == "spiffe://prod/owner" and sorted(segment.regions) == ["all", "kv"]
        friend.write(source, segment["kv"]).result(10)
    with other.open(owner.address) as segment:
        assert list(segment.regions) == ["all"]
    with pytest.raises(tent.PermissionDeniedError, match="wanted was") as caught:
        friend.open(owner.address, identity="dns:*.svc")
    assert caught.value.code == "PEER_NOT_ADMITTED"
    seen = {peer.identity: peer for peer in owner.peers()}
    assert set(seen) == {"spiffe://prod/prefill/0", "dns:other.svc"}
    assert 0 < (seen["dns:other.svc"].expires or 0) <= 86400 and (seen["dns:other.svc"].seen or 0) < 60
    issue("owner", "URI:spiffe://prod/owner")
    assert owner.reload_security() and not owner.reload_security()
    assert owner.reload_security(allow=["spiffe://prod/**"])
    with pytest.raises(tent.PermissionDeniedError, match="its log has the reason"):
        other.open(owner.address)
    assert [peer.identity for peer in owner.peers()] == ["spiffe://prod/prefill/0"]
    assert owner.disconnect("spiffe://prod/prefill/*") == 1 and owner.peers() == []
    with pytest.raises(tent.InvalidEntryError, match="no peer is"):
        owner.disconnect("spiffe://prod/prefill/*")
    for region in (kv, everybodys, source):
        region.close()


def test_one_engine_is_named_by_its_id(engines: Any) -> None:
    owner, friend, other = engines(), engines(), engines()
    with friend.open(owner.address) as segment:
        mine = next(peer.id for peer in owner.peers() if peer.address == friend.address)
        theirs = f"id:{segment.peer_id}"
    assert mine == friend.peer_id and segment.peer_id == owner.peer_id and len(mine) == 32
    rules: dict[str, Any] = {"exactly": f"id:{mine}", "begins": [f"id:{mine[:16]}*"], "nobody": []}
    regions = [owner.allocate(4096, name=name, peers=peers) for name, peers in rules.items()]
    with friend.open(owner.address, identity=theirs) as segment:
        assert sorted(segment.regions) == ["begins", "exactly"]
    with other.open(owner.address) as segment:
        assert not segment.regions
    with pytest.raises(tent.InvalidArgumentError, match="15 digits before a"):
        owner.allocate(4096, name="short", peers=f"id:{mine[:15]}*")
    for region in regions:
        region.close()


@pytest.mark.parametrize("wrong", ["prefill", ["uid:1", 7], 7, "id:12", "uid:root", "dns:a..b"], ids=str)
def test_wrong_identities_are_refused_where_they_are_given(engine: tent.Engine, wrong: Any) -> None:
    with pytest.raises(tent.InvalidArgumentError):
        engine.allocate(4096, name="kv", peers=wrong)
    with pytest.raises(tent.InvalidArgumentError):
        engine.open("127.0.0.1:1", identity=wrong)


def test_a_file_proves_no_identity(engine: tent.Engine, tmp_path: Path) -> None:
    with pytest.raises(tent.InvalidArgumentError, match="belongs to the address of a peer"):
        engine.open(tmp_path / "x", identity="uid:0")
