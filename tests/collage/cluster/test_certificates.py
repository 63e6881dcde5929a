"""Certificates of `collage certs`."""

from __future__ import annotations

import ipaddress
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from collage.cluster.certificates import make_certificates
from collage.cluster.connection import security
from collage.partitioner.errors import BadInputError


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    made = make_certificates(folder, ["server", "worker-1"])
    assert made == [folder / "server", folder / "worker-1"]
    keys = sorted(file.relative_to(folder) for file in folder.rglob("*.key"))
    assert [str(key) for key in keys] == ["ca.key", "server/tls.key", "worker-1/tls.key"]
    for key in keys:
        assert stat.S_IMODE((folder / key).stat().st_mode) == 0o600
    for each in (folder, *made):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700


def test_certificates_are_the_authority_s_and_name_their_hosts(tmp_path: Path) -> None:
    (own,) = make_certificates(tmp_path, ["server"], ["tuner.example.org", "10.0.0.1"], days=30)
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((own / "tls.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server", "tuner.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.1")]
    days = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days
    assert days == 30
    # Python's strictest check of the chain takes both.
    context = ssl.create_default_context(cafile=str(own / "ca.crt"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(own / "tls.crt", own / "tls.key")


def test_authority_is_made_once_and_a_machines_key_never_replaced(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["one"])
    before = (tmp_path / "ca.crt").read_bytes()
    make_certificates(tmp_path, ["two"])
    assert (tmp_path / "ca.crt").read_bytes() == before == (tmp_path / "two" / "ca.crt").read_bytes()
    with pytest.raises(BadInputError, match="exists; remove it"):
        make_certificates(tmp_path, ["three", "one"])
    assert not (tmp_path / "three").exists()
    (tmp_path / "ca.key").unlink()
    with pytest.raises(BadInputError, match="where the authority was made"):
        make_certificates(tmp_path, ["four"])
    with pytest.raises(BadInputError, match="cannot name a machine"):
        make_certificates(tmp_path, ["../etc"])


@pytest.mark.parametrize(
    ("address", "certified", "said"),
    [
        ("tcp://10.0.0.1:8786", False, "open to other machines"),
        ("tcp://0.0.0.0:8786", False, "open to other machines"),
        ("tcp://tuner.example.org:8786", False, "open to other machines"),
        ("tls://127.0.0.1:8786", False, "needs certificates"),
        ("tcp://127.0.0.1:8786", True, "write tls://"),
        ("127.0.0.1:8786", False, "write tls://HOST:8786"),
    ],
)
def test_nothing_leaves_the_machine_without_tls(
    tmp_path: Path, address: str, certified: bool, said: str
) -> None:
    with pytest.raises(BadInputError, match=said):
        security(address, make_certificates(tmp_path, ["x"])[0] if certified else None)


def test_a_folder_without_its_key_is_said(tmp_path: Path) -> None:
    (own,) = make_certificates(tmp_path, ["x"])
    (own / "tls.key").unlink()
    with pytest.raises(BadInputError, match=r"tls\.key is missing"):
        security("tls://127.0.0.1:1", own)
    assert security("tcp://127.0.0.1:8786", None) is None


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tls://tuner:abc", "'abc'"),
        ("tcp://127.0.0.1:99999", "out of range"),
        ("tcp://[::1", "IPv6"),
        ("tuner:8786", ""),
        ("tls://", ""),
    ],
)
def test_malformed_address_is_refused(address: str, why: str) -> None:
    with pytest.raises(BadInputError, match=rf"{why}.*write tls://HOST:8786"):
        security(address, None)
